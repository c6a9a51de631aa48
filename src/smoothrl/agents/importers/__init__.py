"""Agents from elsewhere, read without executing anything from their files."""

from smoothrl.agents.importers.denoisers import denoised_agent, import_denoiser, import_q_network
from smoothrl.agents.importers.released import Imported, import_released, kind_of

__all__ = [
    "Imported",
    "denoised_agent",
    "import_denoiser",
    "import_q_network",
    "import_released",
    "kind_of",
]
