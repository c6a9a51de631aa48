"""Certificates: what no attack within a budget can do, with a confidence that holds.

Pure functions on counts and samples; samplers apart. Nothing here needs torch.
"""

from smoothrl.certificates.actions import ActionBoundResult, AdivResult, action_bound, adiv
from smoothrl.certificates.claims import NOT_VALID, Claim
from smoothrl.certificates.crop import CropResult, crop_radius
from smoothrl.certificates.episodes import (
    CertifiedCurve,
    JointResult,
    certified_curve,
    certified_fraction,
    joint_radius,
    max_false_certificates,
)
from smoothrl.certificates.radius import (
    DeployedRadiusResult,
    RadiusResult,
    deployed_radius,
    radius,
)
from smoothrl.certificates.returns import (
    PerStepBoundResult,
    ReturnBoundResult,
    per_step_return_bound,
    return_bound,
)

__all__ = [
    "NOT_VALID",
    "ActionBoundResult",
    "AdivResult",
    "CertifiedCurve",
    "Claim",
    "CropResult",
    "DeployedRadiusResult",
    "JointResult",
    "PerStepBoundResult",
    "RadiusResult",
    "ReturnBoundResult",
    "action_bound",
    "adiv",
    "certified_curve",
    "certified_fraction",
    "crop_radius",
    "deployed_radius",
    "joint_radius",
    "max_false_certificates",
    "per_step_return_bound",
    "radius",
    "return_bound",
]
