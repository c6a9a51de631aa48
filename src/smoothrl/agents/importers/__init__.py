"""Agents from elsewhere, read without executing anything from their files."""

from smoothrl.agents.importers.cleanrl import import_cleanrl
from smoothrl.agents.importers.denoisers import denoised_agent, import_denoiser, import_q_network
from smoothrl.agents.importers.module import from_torch, run_adapter
from smoothrl.agents.importers.released import Imported, import_released, kind_of
from smoothrl.agents.importers.sb3 import import_sb3, looks_normalised
from smoothrl.agents.importers.statistics import read_statistics

__all__ = [
    "Imported",
    "denoised_agent",
    "from_torch",
    "import_cleanrl",
    "import_denoiser",
    "import_q_network",
    "import_released",
    "import_sb3",
    "kind_of",
    "looks_normalised",
    "read_statistics",
    "run_adapter",
]
