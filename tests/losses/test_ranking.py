"""The losses of ranked lists beside their definitions, written as loops over documents."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.losses import ranking
from gr_jax.losses.ranking import RankedLists

LISTS, LENGTH = 1000, 6


def _draw(seed=0, lists=LISTS, length=LENGTH):
    """Lists of none to all places, a third of the documents without a teacher's score; whole-number ties in some."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(lists, length)) * rng.choice([1.0, 5.0], (lists, 1))
    scores[::4] = np.round(scores[::4])
    teacher = rng.normal(size=(lists, length)) * 2
    valid = rng.random((lists, length)) < rng.choice([0.0, 0.3, 0.8, 1.0], (lists, 1))
    teacher[rng.random(teacher.shape) < 0.3] = np.nan
    return scores, teacher, valid


@pytest.mark.parametrize("name", ranking.RANKING_LOSSES)
def test_who_reads_the_teachers_scores(name):
    """Whose cost changes where the teacher's scores do, while order and documents stay."""
    kind = ranking.RANKING_LOSSES[name]
    scores, (one, other) = jnp.array([[1.0, 3.0, 2.0]] * 2), jnp.array([[[4.0, 2.0, 1.0]] * 2, [[9.0, 8.0, -5.0]] * 2])
    costs = [kind()(scores, RankedLists(jnp.ones((2, 3), bool), teacher)) for teacher in (one, other)]
    assert ranking.reads_teacher(kind) == bool((costs[0] != costs[1]).any())


def _distilled_ranknet(loss, s, t):
    terms = []
    for i in range(len(s)):
        for j in range(i + 1, len(s)):
            weight = loss.first if i == 0 else 1 / (i + 1)
            terms.append(weight * max(0.0, s[j] - s[i] + loss.base + loss.gap * (j - i - 1)))
    violated = [term for term in terms if term > 0]
    return sum(violated) / len(violated) if violated else 0.0


def _kl(loss, s, t):
    chosen = [i for i in range(len(s)) if math.isfinite(t[i])]
    if len(chosen) < 2:
        return 0.0
    q = [math.exp(s[i] / loss.temperature) for i in chosen]
    p = [math.exp(t[i] / loss.teacher_temperature) for i in chosen]
    return sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True))


def _listnet(loss, s, t):
    if len(s) < 2:
        return 0.0
    p = [math.exp(loss.sharpness / (i + 1)) for i in range(len(s))]
    q = [math.exp(x / loss.temperature) for x in s]
    return -sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))


def _listmle(loss, s, t):
    return sum(math.log(sum(math.exp((y - s[i]) / loss.temperature) for y in s[i:])) for i in range(len(s)))


def _ranknet(loss, s, t):
    terms = [
        math.log1p(math.exp((s[j] - s[i]) / loss.temperature)) for i in range(len(s)) for j in range(i + 1, len(s))
    ]
    return sum(terms) / len(terms) if terms else 0.0


def _lambda_loss(loss, s, t):
    n = len(s)
    gains = [n - 1 - i for i in range(n)]
    ideal = sum(gain / math.log2(i + 2) for i, gain in enumerate(gains))
    gains = [gain / ideal if ideal else 0.0 for gain in gains]
    by_student = sorted(range(n), key=lambda i: -s[i])
    place = {document: at + 1 for at, document in enumerate(by_student)}  # ranks from 1 on, as in the paper
    discount = lambda rank: math.log2(1 + rank)  # noqa: E731
    total = 0.0
    for i in range(n):
        for j in range(i + 1, n):
            rho = abs(1 / discount(place[i]) - 1 / discount(place[j]))
            apart = abs(place[i] - place[j])
            delta = abs(1 / discount(apart) - 1 / discount(apart + 1))
            weight = (rho + loss.mu * delta) * abs(gains[i] - gains[j])
            total += weight * math.log2(1 + math.exp(-(s[i] - s[j]) / loss.temperature))
    return total


def _margin_mse(loss, s, t):
    if not len(s) or not math.isfinite(t[0]):
        return 0.0
    others = [j for j in range(1, len(s)) if math.isfinite(t[j])]
    student = [(s[0] - s[j]) / loss.temperature for j in others]
    teacher = [(t[0] - t[j]) / loss.teacher_temperature for j in others]
    return float(np.mean([(a - b) ** 2 for a, b in zip(student, teacher, strict=True)])) if others else 0.0


SLOW = [
    (ranking.DistilledRankNet(base=2.0, gap=0.7), _distilled_ranknet),
    (ranking.DistilledRankNet(base=0.0, gap=0.0, first=1.0), _distilled_ranknet),
    (ranking.ListwiseKL(temperature=2.0, teacher_temperature=0.5), _kl),
    (ranking.ListNet(temperature=2.0, sharpness=3.0), _listnet),
    (ranking.ListMLE(temperature=2.0), _listmle),
    (ranking.RankNet(temperature=0.5), _ranknet),
    (ranking.LambdaLoss(temperature=0.5, mu=10.0), _lambda_loss),
    (ranking.MarginMSE(temperature=2.0, teacher_temperature=0.5), _margin_mse),
]
IDS = [type(loss).__name__ for loss, _ in SLOW]


@pytest.mark.parametrize(("loss", "slow"), SLOW, ids=IDS)
def test_a_loss_is_its_definition(loss, slow):
    scores, teacher, valid = _draw()
    with jax.enable_x64(True):
        found = np.asarray(loss(jnp.asarray(scores), RankedLists(jnp.asarray(valid), jnp.asarray(teacher))))
    expected = [slow(loss, s[v].tolist(), t[v].tolist()) for s, t, v in zip(scores, teacher, valid, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert (found != 0).mean() > 0.4


def test_two_margins_of_a_query():
    """The best positive against the best negative, and a positive at random against each negative as likely."""
    loss = ranking.TwoMargins(base=1.5, gap=0.5)
    scores, teacher, valid = (x.reshape(-1, 2, LENGTH) for x in _draw(1))
    with jax.enable_x64(True):
        found = np.asarray(loss(jnp.asarray(scores), RankedLists(jnp.asarray(valid), jnp.asarray(teacher))))
    for query in range(len(scores)):
        for place, margin, of in ((0, 1.5, max), (1, 2.0, np.mean)):
            s = scores[query, place][valid[query, place]]
            hinges = [max(0.0, x - s[0] + margin) for x in s[1:]]
            assert found[query, place] == pytest.approx(of(hinges) if hinges else 0.0)


def test_the_worked_list():
    """Three documents of equal scores: 900, 1200 and 150, of which the mean is 750."""
    lists = RankedLists(jnp.ones(3, bool), jnp.zeros(3))
    assert float(ranking.DistilledRankNet()(jnp.zeros(3), lists)) == 750.0


EVERY = [*(loss for loss, _ in SLOW), ranking.TwoMargins(base=1.5, gap=0.5)]


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_gradients_beside_finite_differences(loss):
    scores, teacher, valid = (x.reshape(-1, 2, LENGTH) for x in _draw(2, lists=40))
    scores = scores + np.random.default_rng(3).normal(size=scores.shape) * 0.01  # no ties: kinks have no derivative
    with jax.enable_x64(True):
        lists = RankedLists(jnp.asarray(valid), jnp.asarray(teacher))
        weights = None
        if isinstance(loss, ranking.LambdaLoss):  # which takes its weights as they are
            weights = jnp.where(lists.pairs, loss._weights(jnp.asarray(scores), lists), 0.0)

        def total(s):
            if weights is None:
                return jnp.sum(loss(s, lists))
            above = ranking._differences(s, lists.valid) / loss.temperature
            return jnp.sum(weights * jnp.log2(1 + jnp.exp(-above)))

        gradient = np.asarray(jax.grad(lambda s: jnp.sum(loss(s, lists)))(jnp.asarray(scores)))
        step = 1e-6
        for place in np.ndindex(scores.shape):
            moved = scores.copy()
            moved[place] += step
            up = float(total(jnp.asarray(moved)))
            moved[place] -= 2 * step
            slope = (up - float(total(jnp.asarray(moved)))) / (2 * step)
            assert gradient[place] == pytest.approx(slope, rel=1e-4, abs=1e-4)
    assert gradient.any()
    assert not gradient[~valid].any()


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_padding_is_worth_exactly_nothing(loss):
    """Whatever stands there, wherever it stands."""
    scores, teacher, valid = (x.reshape(-1, 2, LENGTH) for x in _draw(4, lists=60))
    filled = np.where(valid, scores, 1e9), np.where(valid, teacher, np.nan)
    lists = RankedLists(jnp.asarray(valid), jnp.asarray(teacher, jnp.float32))
    others = RankedLists(jnp.asarray(valid), jnp.asarray(filled[1], jnp.float32))

    def both(s, lists):
        return jax.value_and_grad(lambda s: jnp.sum(loss(s, lists)))(jnp.asarray(s, jnp.float32))

    for found, expected in zip(both(filled[0], others), both(scores, lists), strict=True):
        np.testing.assert_array_equal(found, expected)
    behind = np.argsort(~valid, axis=-1, kind="stable")
    scores, teacher, valid = (np.take_along_axis(x, behind, -1) for x in (scores, teacher, valid))
    moved = loss(jnp.asarray(scores, jnp.float32), RankedLists(jnp.asarray(valid), jnp.asarray(teacher, jnp.float32)))
    np.testing.assert_allclose(moved, loss(jnp.asarray(filled[0], jnp.float32), others), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ranking.RANKING_LOSSES)
def test_numbers_that_make_no_loss_are_refused(name):
    kind = ranking.RANKING_LOSSES[name]
    for field in dataclasses.fields(kind):
        with pytest.raises(InputError, match=field.name):
            kind(**{field.name: float("nan")})
        with pytest.raises(InputError, match=field.name):
            kind(**{field.name: -1.0})
