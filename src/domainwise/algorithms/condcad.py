"""CondCAD: CAD within each class (Ruan et al. 2022)."""

from domainwise.algorithms.cad import CAD


class CondCAD(CAD):
    """Conditional CAD: a penalty if a sample's neighbours within its class reveal its domain."""

    within_class = True
