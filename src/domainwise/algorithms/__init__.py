"""All methods, by their name on the command line and in records."""

from collections.abc import Mapping

from domainwise.algorithms.adrmx import ADRMX
from domainwise.algorithms.andmask import ANDMask
from domainwise.algorithms.arm import ARM
from domainwise.algorithms.at import AT
from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.cad import CAD
from domainwise.algorithms.causirlcoral import CausIRLCORAL
from domainwise.algorithms.causirlmmd import CausIRLMMD
from domainwise.algorithms.cdann import CDANN
from domainwise.algorithms.condcad import CondCAD
from domainwise.algorithms.coral import CORAL
from domainwise.algorithms.dann import DANN
from domainwise.algorithms.dsu import DSU
from domainwise.algorithms.eqrm import EQRM
from domainwise.algorithms.erm import ERM
from domainwise.algorithms.ermplusplus import ERMPlusPlus
from domainwise.algorithms.fish import Fish
from domainwise.algorithms.fishr import Fishr
from domainwise.algorithms.groupdro import GroupDRO
from domainwise.algorithms.gut import GUT
from domainwise.algorithms.iberm import IBERM
from domainwise.algorithms.ibirm import IBIRM
from domainwise.algorithms.iga import IGA
from domainwise.algorithms.irm import IRM
from domainwise.algorithms.ldat import LDAT
from domainwise.algorithms.mat import MAT
from domainwise.algorithms.miro import MIRO
from domainwise.algorithms.mixstyle import MixStyle
from domainwise.algorithms.mixup import Mixup
from domainwise.algorithms.mldg import MLDG
from domainwise.algorithms.mmd import MMD
from domainwise.algorithms.mtl import MTL
from domainwise.algorithms.ncdg import NCDG
from domainwise.algorithms.randconv import RandConv
from domainwise.algorithms.rdm import RDM
from domainwise.algorithms.rsc import RSC
from domainwise.algorithms.sagm import SAGM
from domainwise.algorithms.sagnet import SagNet
from domainwise.algorithms.sam import SAM
from domainwise.algorithms.sandmask import SANDMask
from domainwise.algorithms.sd import SD
from domainwise.algorithms.selfreg import SelfReg
from domainwise.algorithms.transfer import Transfer
from domainwise.algorithms.trm import TRM
from domainwise.algorithms.uat import UAT
from domainwise.algorithms.urm import URM
from domainwise.algorithms.vrex import VREx

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "erm": ERM,
    "at": AT,
    "uat": UAT,
    "mat": MAT,
    "ldat": LDAT,
    "irm": IRM,
    "vrex": VREx,
    "groupdro": GroupDRO,
    "mixup": Mixup,
    "mldg": MLDG,
    "mmd": MMD,
    "coral": CORAL,
    "dann": DANN,
    "mtl": MTL,
    "sagnet": SagNet,
    "rsc": RSC,
    "andmask": ANDMask,
    "gut": GUT,
    "ncdg": NCDG,
    "ermplusplus": ERMPlusPlus,
    "sam": SAM,
    "sagm": SAGM,
    "sd": SD,
    "iberm": IBERM,
    "ibirm": IBIRM,
    "fishr": Fishr,
    "eqrm": EQRM,
    "rdm": RDM,
    "cad": CAD,
    "condcad": CondCAD,
    "causirlcoral": CausIRLCORAL,
    "causirlmmd": CausIRLMMD,
    "miro": MIRO,
    "cdann": CDANN,
    "transfer": Transfer,
    "urm": URM,
    "adrmx": ADRMX,
    "fish": Fish,
    "sandmask": SANDMask,
    "iga": IGA,
    "trm": TRM,
    "arm": ARM,
    "selfreg": SelfReg,
    "randconv": RandConv,
    "mixstyle": MixStyle,
    "dsu": DSU,
}

__all__ = [
    "ADRMX",
    "ALGORITHMS",
    "ARM",
    "AT",
    "CAD",
    "CDANN",
    "CORAL",
    "DANN",
    "DSU",
    "EQRM",
    "ERM",
    "GUT",
    "IBERM",
    "IBIRM",
    "IGA",
    "IRM",
    "LDAT",
    "MAT",
    "MIRO",
    "MLDG",
    "MMD",
    "MTL",
    "NCDG",
    "RDM",
    "RSC",
    "SAGM",
    "SAM",
    "SD",
    "TRM",
    "UAT",
    "URM",
    "ANDMask",
    "Algorithm",
    "CausIRLCORAL",
    "CausIRLMMD",
    "CondCAD",
    "ERMPlusPlus",
    "Fish",
    "Fishr",
    "GroupDRO",
    "MixStyle",
    "Mixup",
    "RandConv",
    "SANDMask",
    "SagNet",
    "SelfReg",
    "Transfer",
    "VREx",
]
