import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax import losses


def draw(seed, rows=4, columns=5):
    random = np.random.default_rng(seed)
    student, teacher = random.normal(size=(2, rows, columns)).astype(np.float32) * 3
    valid = random.random((rows, columns)) < 0.7
    return student, np.where(valid, teacher, np.nan).astype(np.float32), valid


@settings(max_examples=30)
@given(st.integers(0, 200))
def test_margin_mse_is_its_definition(seed):
    student, teacher, valid = draw(seed)
    found = losses.margin_mse(jnp.asarray(student), jnp.asarray(teacher), jnp.asarray(valid))
    for i in range(len(student)):
        errors = [
            ((student[i, 0] - student[i, j]) - (teacher[i, 0] - teacher[i, j])) ** 2
            for j in range(1, student.shape[1])
            if valid[i, 0] and valid[i, j]
        ]
        assert found[i] == pytest.approx(np.mean(errors) if errors else 0, rel=1e-4)


@settings(max_examples=30)
@given(st.integers(0, 200), st.sampled_from([0.5, 1.0, 2.0]))
def test_kl_is_its_definition(seed, temperature):
    student, teacher, valid = draw(seed)
    found = losses.teacher_kl(
        jnp.asarray(student), jnp.asarray(teacher), jnp.asarray(valid), teacher_temperature=temperature
    )
    for i in range(len(student)):
        chosen = valid[i]
        q = np.exp(student[i, chosen].astype(float))
        p = np.exp(teacher[i, chosen].astype(float) / temperature)
        p, q = p / p.sum(), q / q.sum()
        assert found[i] == pytest.approx(np.sum(p * np.log(p / q)), abs=1e-4)


@pytest.mark.parametrize("loss", (losses.margin_mse, losses.teacher_kl))
def test_what_the_teacher_did_not_score_has_no_gradient(loss):
    student, teacher, valid = draw(1)
    valid[0] = False
    teacher[0] = np.nan
    gradient = jax.grad(lambda s: jnp.sum(loss(s, jnp.asarray(teacher), jnp.asarray(valid))))(jnp.asarray(student))
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[~valid].any()
    assert np.asarray(gradient)[1:].any()


@pytest.mark.parametrize("loss", (losses.margin_mse, losses.teacher_kl))
def test_agreeing_with_the_teacher_costs_nothing(loss):
    student, _, _ = draw(2)
    found = loss(jnp.asarray(student), jnp.asarray(student + 4.0), jnp.ones(student.shape, bool))
    np.testing.assert_allclose(found, 0, atol=1e-5)
