"""Cross-entropy is entropy and divergence: an identity, SciPy's numbers, and the loss that writers are trained by."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gr_jax.evaluation import theory


def distributions(seed: int, rows: int = 4, size: int = 7):
    random = np.random.default_rng(seed)
    made = random.dirichlet(np.full(size, 0.3), size=(2, rows))
    made[0, 0] = np.eye(size)[seed % size]  # one that is sure
    return made


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_the_identity_of_proposition_3_2(seed):
    target, model = distributions(seed)
    found = theory.cross_entropy(target, model)
    np.testing.assert_allclose(found, theory.entropy(target) + theory.kl_divergence(target, model), rtol=1e-9)
    np.testing.assert_allclose(theory.entropy(target), stats.entropy(target, axis=-1), atol=1e-12)
    np.testing.assert_allclose(theory.kl_divergence(target, model), stats.entropy(target, model, axis=-1), rtol=1e-9)
    assert (theory.kl_divergence(target, model) >= 0).all()
    assert theory.kl_divergence(target, target).tolist() == [0.0] * len(target)


def test_the_best_model_is_the_target_and_what_it_costs_is_the_entropy():
    target, other = distributions(1)
    own = optax.softmax_cross_entropy(jnp.log(jnp.maximum(target, 1e-30)), target)
    np.testing.assert_allclose(own, theory.entropy(target), atol=1e-5)
    assert (theory.cross_entropy(target, other) >= theory.entropy(target)).all()


def test_what_a_model_leaves_out_costs_everything():
    target, model = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    assert theory.cross_entropy(target, model) == np.inf and theory.kl_divergence(target, model) == np.inf
    assert theory.kl_divergence(model, target) == pytest.approx(np.log(2))
