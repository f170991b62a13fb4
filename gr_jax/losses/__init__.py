"""Losses: functions of predictions and targets, one number per token or example; weights and sums are the model's."""

from gr_jax.losses.cross_entropy import TokenLosses as TokenLosses
from gr_jax.losses.cross_entropy import cross_entropy as cross_entropy
from gr_jax.losses.cross_entropy import level_cross_entropy as level_cross_entropy
from gr_jax.losses.cross_entropy import level_mask as level_mask
from gr_jax.losses.rdrop import symmetric_kl as symmetric_kl
