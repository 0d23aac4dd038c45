"""Templates and the codes that estimate them.

Columns of noise are independent, so that one draw of R columns is R samples. The z-tests below have a family-wise
false-fail rate of 1e-6 (Bonferroni over all functionals of a test, Student's law), and their power is asserted: codes
with a mistake must fail them.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck

from topomask.masks import stochastic_codes
from topomask.masks.stochastic_codes import (
    ConvTemplates,
    SineTemplates,
    Templates,
    load_seed,
    make_templates,
    save_seed,
)

NUM_SAMPLES = 20_000
FALSE_FAIL_RATE = 1e-6
LENGTH, FIRST = 9, 4


def sine(shape=(2,), gated=True, num_sines=3) -> SineTemplates:
    """Frequencies up to one half and phases of both signs."""
    generator = torch.Generator().manual_seed(0)
    templates = SineTemplates(shape, num_sines, gated).double()
    with torch.no_grad():
        for name, parameter in templates.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(2.0 * noise - 1.0 if name == "raw_frequencies" else noise)
    return templates


def conv(shape=(2,), gated=True, kernel_size=4) -> ConvTemplates:
    """Filters of both signs that differ between queries and keys."""
    generator = torch.Generator().manual_seed(1)
    templates = ConvTemplates(shape, kernel_size, gated).double()
    with torch.no_grad():
        for parameter in templates.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return templates


MAKERS = {"sine": sine, "conv": conv}


def formula(templates: Templates, lag: int) -> np.ndarray:
    """The template at one lag as it is defined, [*T], in NumPy."""
    values = {name: value.detach().numpy() for name, value in templates.named_parameters()}
    if isinstance(templates, SineTemplates):
        gains = np.log1p(np.exp(values["raw_gains"]))
        frequencies = 0.5 / (1.0 + np.exp(-values["raw_frequencies"]))
        process = (gains**2 * np.cos(2.0 * np.pi * frequencies * lag + values["phases"])).sum(-1)
    else:
        query, key = values["query_filter"], values["key_filter"]
        size = query.shape[-1]
        pairs = [(p, p - lag) for p in range(size) if 0 <= p - lag < size]
        process = sum((query[..., p] * key[..., r] for p, r in pairs), np.zeros(query.shape[:-1]))
    if "gate" not in values:
        return process
    delta = 1.0 / (1.0 + np.exp(-values["gate"]))
    return delta + (1.0 - delta) * process


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_template_is_the_formula(kind, gated, shape):
    templates = MAKERS[kind](shape, gated)
    lags = torch.tensor([0, 1, -1, 3, -3, 4, 17, -100])
    expected = np.stack([formula(templates, int(lag)) for lag in lags], axis=-1)
    torch.testing.assert_close(templates(lags), torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_conv_template_is_a_correlation():
    """Another oracle, which SciPy's and NumPy's users know."""
    templates = conv(gated=False)
    lags = torch.arange(-3, 4)
    filters = templates.query_filter.detach().numpy(), templates.key_filter.detach().numpy()
    for found, query, key in zip(templates(lags), *filters, strict=True):
        torch.testing.assert_close(found, torch.from_numpy(np.correlate(query, key, "full")))


def samples(templates: Templates, spoil=lambda templates: None) -> tuple[torch.Tensor, torch.Tensor]:
    """Fixed functionals of the products of codes, one sample per column of noise, and their exact expectations."""
    lag = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    exact = torch.from_numpy(np.stack([formula(templates, int(x)) for x in lag.flatten()], -1)).unflatten(-1, lag.shape)
    with torch.no_grad():
        spoil(templates)
        noise = templates.noise(7, FIRST, LENGTH, NUM_SAMPLES, "cpu")
        query, key = (templates.codes(noise, FIRST, LENGTH, side) for side in ("query", "key"))
    generator = torch.Generator().manual_seed(2)
    u, v = torch.randn(2, 6, LENGTH, generator=generator, dtype=torch.float64)
    # Far pairs in both directions, where a wrong sign of the phase or a swapped filter shows.
    u = torch.cat([u, torch.eye(LENGTH, dtype=torch.float64)[[0, 2, LENGTH - 1]]])
    v = torch.cat([v, torch.eye(LENGTH, dtype=torch.float64)[[2, 0, LENGTH - 1]]])
    found = torch.einsum("fm,hmr,fn,hnr->rhf", u, query, v, key) * NUM_SAMPLES
    return found.flatten(1), torch.einsum("fm,hmn,fn->hf", u, exact, v).flatten()


def scores(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return ((found.mean(0) - truth) / (found.std(0) / len(found) ** 0.5)).abs()


def threshold(count: int) -> float:
    return float(stats.t.isf(FALSE_FAIL_RATE / (2 * count), NUM_SAMPLES - 1))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("gated", [True, False])
def test_products_of_codes_are_unbiased(kind, gated):
    found, truth = samples(MAKERS[kind](gated=gated))
    assert scores(found, truth).max() < threshold(len(truth))


def forget_gate(templates: Templates) -> None:
    templates.gate = None


def swap_filters(templates: Templates) -> None:
    templates.query_filter, templates.key_filter = templates.key_filter, templates.query_filter


MISTAKES = {
    "wrong sign of the phase": ("sine", lambda t: t.phases.neg_()),
    "no phase": ("sine", lambda t: t.phases.zero_()),
    "double frequency": ("sine", lambda t: t.raw_frequencies.add_(math.log(2.0))),
    "gains a little too large": ("sine", lambda t: t.raw_gains.add_(0.1)),
    "no gate of sines": ("sine", forget_gate),
    "no gate of filters": ("conv", forget_gate),
    "swapped filters": ("conv", swap_filters),
    "shifted filter": ("conv", lambda t: t.query_filter.copy_(t.query_filter.roll(1, -1))),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_test_of_bias_has_power(name):
    kind, mistake = MISTAKES[name]
    found, truth = samples(MAKERS[kind](), mistake)
    assert scores(found, truth).max() > 1.5 * threshold(len(truth))


@pytest.mark.parametrize("kind", MAKERS)
def test_codes_of_a_part_are_part_of_the_codes(kind):
    """A position has the same code in a sequence of any length, to the last bit of its noise."""
    templates = MAKERS[kind]()
    whole = templates.codes(templates.noise(3, 0, 20, 5, "cpu"), 0, 20, "key")
    part = templates.codes(templates.noise(3, 6, 8, 5, "cpu"), 6, 8, "key")
    torch.testing.assert_close(part, whole[:, 6:14], rtol=1e-13, atol=1e-13)
    assert templates.codes(templates.noise(3, 6, 0, 5, "cpu"), 6, 0, "key").shape == (2, 0, 5)


def test_noise_is_standard_normal_and_unrelated():
    """Kolmogorov-Smirnov and correlations between columns, sources, templates, purposes and seeds, each at 1e-6."""
    templates = sine((40,), num_sines=10)
    noise = templates.noise(0, 0, 1, 250, "cpu").process.double() * 250**0.5
    flat = noise.flatten().numpy()
    assert stats.kstest(flat, "norm").pvalue > 1e-6
    other = templates.noise(1, 0, 1, 250, "cpu").process.double() * 250**0.5
    constant = templates.noise(0, 0, 1, 250, "cpu").constant.double() * 250**0.5
    pairs = [
        (noise[..., ::2], noise[..., 1::2]),
        (noise[..., :-1], noise[..., 1:]),
        (noise[:, :-1], noise[:, 1:]),
        (noise[:-1], noise[1:]),
        (noise, other),
        (noise[:, :1], constant),
    ]
    for a, b in pairs:
        count = a.numel()
        assert abs(float((a * b).mean())) * count**0.5 < 4.9
        assert abs(float((a.square() * b.square()).mean() - 1.0)) * count**0.5 < 4.9 * 8**0.5


def test_noise_does_not_depend_on_blocks(monkeypatch):
    templates = conv((3,))
    whole = templates.noise(5, -2, 30, 7, "cpu")
    monkeypatch.setattr(stochastic_codes, "_HASHES_PER_BLOCK", 16)
    for a, b in zip(whole, templates.noise(torch.tensor(5), -2, 30, 7, "cpu"), strict=True):
        assert torch.equal(a, b)


def test_the_noise_has_not_changed():
    """Checkpoints hold a seed and the version of the noise; where this fails, the version must go up."""
    assert stochastic_codes.NOISE_VERSION == 1
    process, constant = sine((2,), num_sines=1).noise(0, 0, 1, 3, "cpu")
    found = torch.cat([process[1, 1], constant[1, 0]])
    expected = torch.tensor([-0.010682857, 1.095935345, 0.269988984, -0.122965932, -0.695977092, 0.503441811])
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-6, atol=1e-7)


# Sines are encoded through codes, or without them where these are larger.
@pytest.mark.parametrize("num_columns", [3, 13])
@pytest.mark.parametrize("kind", MAKERS)
def test_gradients(kind, num_columns):
    templates = MAKERS[kind]((2, 2))
    noise = templates.noise(0, 2, 3, num_columns, "cpu")
    x = torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    parameters = list(templates.parameters())
    assert len(parameters) == (4 if kind == "sine" else 3)
    assert gradcheck(lambda *_: templates(torch.arange(-4, 5)), parameters)
    for side in ("query", "key"):
        assert gradcheck(lambda *_, s=side: templates.codes(noise, 2, 3, s), parameters)
        assert gradcheck(lambda x, *_, s=side: templates.encode(x, noise, 2, s), (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("num_columns", [3, 13])
def test_encoding_is_the_sum_over_codes(kind, gated, num_columns):
    templates = MAKERS[kind]((2, 3), gated)
    noise = templates.noise(0, 1, 6, num_columns, "cpu")
    x = torch.randn(2, 2, 6, 3, dtype=torch.float64)
    for side in ("query", "key"):
        expected = torch.einsum("bhnd,hdnr->bhnr", x, templates.codes(noise, 1, 6, side))
        torch.testing.assert_close(templates.encode(x, noise, 1, side), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("length", [1, 3, 4, 15, 16, 17, 60])
def test_filters_in_blocks_and_segments(size, length, monkeypatch):
    """Against torch's convolution, with blocks and segments small enough for all cases."""
    monkeypatch.setattr(stochastic_codes, "_POSITIONS_PER_BLOCK", 4)
    monkeypatch.setattr(stochastic_codes, "_BLOCKS_PER_SEGMENT", 4)
    taps = torch.randn(3, size, dtype=torch.float64)
    signal = torch.randn(3, length + size - 1, 2, dtype=torch.float64)
    expected = torch.nn.functional.conv1d(signal.permute(2, 0, 1), taps[:, None], groups=3).permute(1, 2, 0)
    torch.testing.assert_close(stochastic_codes._correlate(taps, signal), expected)


def test_far_positions_keep_their_phase():
    """A million positions away, single precision loses nothing but what its frequencies have lost."""
    templates = sine(gated=False).float()
    lag = 1_000_003
    gains, frequencies, phases = (
        x.detach().double() for x in (templates.gains(), templates.frequencies(), templates.phases)
    )
    exact = (gains**2 * torch.cos(2 * math.pi * frequencies * lag + phases)).sum(-1)
    found = templates(torch.tensor([lag]))[:, 0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_an_open_gate_leaves_the_constant_and_a_closed_one_the_template():
    templates = sine()
    lags = torch.arange(-3, 4)
    with torch.no_grad():
        templates.gate.fill_(50.0)
        torch.testing.assert_close(templates(lags), torch.ones(2, 7, dtype=torch.float64))
        noise = templates.noise(0, 0, 4, 3, "cpu")
        # What is left of the process is the root of exp(-50).
        codes = templates.codes(noise, 0, 4, "query")
        torch.testing.assert_close(codes, noise.constant.double().expand(2, 4, 3), rtol=0, atol=1e-9)
        templates.gate.fill_(-50.0)
        torch.testing.assert_close(templates(lags), templates.process_template(lags))
        templates.gate.fill_(-1e4)
    templates.codes(noise, 0, 4, "query").sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in templates.parameters())


def test_templates_start_at_one():
    torch.manual_seed(0)
    torch.testing.assert_close(SineTemplates((3, 4), 5, gated=False)(torch.tensor([0])), torch.ones(3, 4, 1))
    peak = ConvTemplates((200,), 64, gated=False)(torch.tensor([0])).detach()
    # The mean of 200 sums of 64 products of uniform numbers; 0.1 is more than ten standard deviations.
    assert abs(float(peak.mean()) - 1.0) < 0.1


def test_bad_arguments_are_named():
    for options, message in (
        (dict(kind="cosine"), "kind"),
        (dict(kind="sine", kernel_size=3), "kernel_size"),
        (dict(kind="conv", num_sines=3), "num_sines"),
        (dict(kind="sine", num_sines=0), "num_sines"),
        (dict(kind="conv", kernel_size=2.5), "kernel_size"),
    ):
        arguments = dict(num_sines=None, kernel_size=None, gated=True) | options
        with pytest.raises(ValueError, match=message):
            make_templates((1,), **arguments)
    for state in (torch.tensor([99, 1]), torch.tensor([1]), torch.tensor([1, 2, 3])):
        with pytest.raises(ValueError, match="release"):
            load_seed(state)
    assert load_seed(save_seed(-5)) == -5
