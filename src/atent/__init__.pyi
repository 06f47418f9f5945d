"""The public names of the package. `__init__.py` reads this list and imports each name when it is first used."""

from atent.ascent import ascend as ascend
from atent.attacks import ATTACKS as ATTACKS
from atent.attacks import Apgd as Apgd
from atent.attacks import AtentChain as AtentChain
from atent.attacks import Attack as Attack
from atent.attacks import Cascade as Cascade
from atent.attacks import CwL2 as CwL2
from atent.attacks import CwLinf as CwLinf
from atent.attacks import DeepFool as DeepFool
from atent.attacks import Fgsm as Fgsm
from atent.attacks import MinimalAttack as MinimalAttack
from atent.attacks import PerImage as PerImage
from atent.attacks import Pgd as Pgd
from atent.attacks import SmoothPgd as SmoothPgd
from atent.attacks import Square as Square
from atent.data.images import Images as Images
from atent.defenses import DEFENSES as DEFENSES
from atent.defenses import Atent as Atent
from atent.defenses import Defense as Defense
from atent.defenses import Fast as Fast
from atent.defenses import Mart as Mart
from atent.defenses import Mma as Mma
from atent.defenses import NFgsm as NFgsm
from atent.defenses import PgdAt as PgdAt
from atent.defenses import Search as Search
from atent.defenses import Standard as Standard
from atent.defenses import Term as Term
from atent.defenses import Trades as Trades
from atent.defenses import worst_point as worst_point
from atent.errors import ThreatWarning as ThreatWarning
from atent.evaluation.target import open_target as open_target
from atent.losses import boosted_cross_entropy as boosted_cross_entropy
from atent.losses import cross_entropy as cross_entropy
from atent.losses import divergence as divergence
from atent.losses import dlr as dlr
from atent.losses import margin as margin
from atent.losses import soft_margin as soft_margin
from atent.losses import targeted_dlr as targeted_dlr
from atent.models import MODELS as MODELS
from atent.models import Shape as Shape
from atent.models import Standardize as Standardize
from atent.optim.entropy_sgd import EntropySGD as EntropySGD
from atent.recipe import load_recipe as load_recipe
from atent.smoothing.smoothed import Smoothed as Smoothed
from atent.smoothing.stopping import Smoothing as Smoothing
from atent.threat import Threat as Threat
from atent.training.fit import fit as fit
from atent.training.options import TrainingOptions as TrainingOptions

__version__: str
__all__: list[str]
