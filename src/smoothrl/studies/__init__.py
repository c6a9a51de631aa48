"""Studies: declared grids of methods, environments, seeds and evaluations, and the runner that fills them."""

from smoothrl.studies.predefined import STUDIES, catalogue, find_study

__all__ = ["STUDIES", "catalogue", "find_study"]
