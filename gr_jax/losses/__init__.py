"""Losses: functions of predictions and targets, one number per token or example; and losses of whole batches."""

from gr_jax.losses.batch_loss import BatchLoss as BatchLoss
from gr_jax.losses.batch_loss import ContrastiveLoss as ContrastiveLoss
from gr_jax.losses.contrastive import ContrastiveLosses as ContrastiveLosses
from gr_jax.losses.contrastive import batch_weights as batch_weights
from gr_jax.losses.contrastive import group_size as group_size
from gr_jax.losses.contrastive import positive_columns as positive_columns
from gr_jax.losses.contrastive import weighted_softmax as weighted_softmax
from gr_jax.losses.cross_entropy import TokenLosses as TokenLosses
from gr_jax.losses.cross_entropy import cross_entropy as cross_entropy
from gr_jax.losses.cross_entropy import level_mask as level_mask
from gr_jax.losses.distillation import margin_mse as margin_mse
from gr_jax.losses.distillation import teacher_kl as teacher_kl
from gr_jax.losses.levels import level_losses as level_losses
from gr_jax.losses.ranking import RANKING_LOSSES as RANKING_LOSSES
from gr_jax.losses.ranking import DistilledRankNet as DistilledRankNet
from gr_jax.losses.ranking import LambdaLoss as LambdaLoss
from gr_jax.losses.ranking import ListMLE as ListMLE
from gr_jax.losses.ranking import ListNet as ListNet
from gr_jax.losses.ranking import ListwiseKL as ListwiseKL
from gr_jax.losses.ranking import MarginMSE as MarginMSE
from gr_jax.losses.ranking import RankedLists as RankedLists
from gr_jax.losses.ranking import RankingLoss as RankingLoss
from gr_jax.losses.ranking import RankNet as RankNet
from gr_jax.losses.ranking import TwoMargins as TwoMargins
from gr_jax.losses.rdrop import symmetric_kl as symmetric_kl
