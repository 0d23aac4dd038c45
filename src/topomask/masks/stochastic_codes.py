r"""Templates of relative positions, and random codes whose products are unbiased estimates of them.

A template is a function P of the lag m - n between a query and a key. Queries get codes :math:`\bar Q` and keys get
codes :math:`\bar K`, both functions of the same noise with R columns, such that

.. math:: \mathbb{E}\,\bar Q_m^\top \bar K_n = P(m - n)

All noise comes from hashes of (seed, purpose, template, source, column), so a position has the same code in every
sequence, and any part of a sequence can be encoded alone.

Shapes: ``T`` stands for the axes of the templates, [H] or [H, D]; ``R`` is the number of realizations.

References:
    Liutkus et al. (2021), Relative positional encoding for Transformers with linear complexity.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph.input import check_integer
from topomask.ops.derived import plainly
from topomask.ops.sample_walks import random
from topomask.support.checks import check_choice

Kind = Literal["sine", "conv"]
Side = Literal["query", "key"]

# Changes whenever the same seed gives different noise.
NOISE_VERSION = 1

# The first word that noise is hashed from, after the seed.
_PROCESS, _CONSTANT = 0, 1

_DEFAULT_SINES, _DEFAULT_KERNEL = 5, 128

# Filters are applied by matrix products for this many positions at a time, in segments of this many blocks.
_POSITIONS_PER_BLOCK, _BLOCKS_PER_SEGMENT = 64, 16

# Hashes turned into noise at a time: they stay in the cache.
_HASHES_PER_BLOCK = 1 << 15


class Noise(NamedTuple):
    """The noise behind the codes of some positions, in float32, scaled by 1 / sqrt(R)."""

    process: Tensor  # [*T, J, R], with the J sources that the kind of template needs
    constant: Tensor  # [*T, 1, R], the same at all positions


@dataclass(frozen=True)
class Sources:
    """The sources of noise behind codes: the same at all positions, or one per position."""

    shape: tuple[int, ...]  # of the templates T
    fixed: int = 0  # sources shared by all positions; 0 for one source per position
    before: int = 0  # sources of previous positions that a code looks back to

    def noise(self, seed: Tensor | int, first: int, count: int, num_columns: int, device: torch.device | str) -> Noise:
        """Return the noise behind the codes of the positions ``first`` to ``first + count - 1``."""
        numbers = (0, self.fixed) if self.fixed else (first - self.before, count + self.before)
        process = _normal(seed, _PROCESS, self.shape, numbers, num_columns, device)
        return Noise(process, _normal(seed, _CONSTANT, self.shape, (0, 1), num_columns, device))

    def orthonormal(self) -> Noise:
        """Return a unit vector per source instead of noise, which makes products of codes exact."""
        if not self.fixed:
            raise ValueError("`num_realizations` is None, but only kind='sine' has low rank. Pass a number.")
        eye = torch.eye(self.fixed + 1, device="cpu").expand(*self.shape, -1, -1)
        return Noise(eye[..., :-1, :], eye[..., -1:, :])


class Templates(nn.Module, ABC):
    r"""Learnable templates P, one for every index of the shape T of ``sources``, and their codes.

    With ``gated``, a template is mixed with a constant, :math:`\delta + (1 - \delta) P` with :math:`0 < \delta < 1`, by
    mixing codes with noise that is the same at all positions. :math:`\delta` starts at one half.
    """

    gate: nn.Parameter | None

    def __init__(self, sources: Sources, gated: bool) -> None:
        super().__init__()
        self.sources, self.shape = sources, sources.shape
        self.register_parameter("gate", nn.Parameter(torch.zeros(self.shape)) if gated else None)

    @abstractmethod
    def process_template(self, lags: Tensor) -> Tensor:
        """Return P without the gate at integer lags [L], as [*T, L]."""

    @abstractmethod
    def process_codes(self, noise: Tensor, first: int, count: int, side: Side) -> Tensor:
        """Return the codes, without the gate, of ``count`` positions from ``first``, as [*T, count, R]."""

    @property
    def sources_per_code(self) -> int:
        """Sources of noise behind the code of one position: the work for one of its columns."""
        return self.sources.fixed or self.sources.before + 1

    def forward(self, lags: Tensor) -> Tensor:
        """Return the exact templates at integer lags [L], as [*T, L]."""
        template = self.process_template(lags)
        if self.gate is None:
            return template
        delta = wide(self.gate).sigmoid()[..., None]
        return delta + (1.0 - delta) * template

    def noise(self, seed: Tensor | int, first: int, count: int, num_columns: int, device: torch.device | str) -> Noise:
        """Return the noise behind the codes of the positions ``first`` to ``first + count - 1``."""
        return self.sources.noise(seed, first, count, num_columns, device)

    def codes(self, noise: Noise, first: int, count: int, side: Side) -> Tensor:
        """Return the codes of the positions ``first`` to ``first + count - 1``, as [*T, count, R]."""
        codes = self.process_codes(noise.process, first, count, side)
        if self.gate is None:
            return codes
        stay, move = self._shares()
        return stay[..., None, None] * noise.constant + move[..., None, None] * codes

    def encode(self, x: Tensor, noise: Noise, first: int, side: Side) -> Tensor:
        """Sum codes weighted by x [B, H, N, D], for templates of shape [H, D], into [B, H, N, R]."""
        if self.gate is None:
            return self.encode_process(x, noise.process, first, side)
        stay, move = (share.to(x.dtype).unsqueeze(-2) for share in self._shares())
        moved = self.encode_process(x * move, noise.process, first, side)
        return moved + (x * stay) @ noise.constant.squeeze(-2).to(x.dtype)

    def encode_process(self, x: Tensor, noise: Tensor, first: int, side: Side) -> Tensor:
        """Sum codes without the gate, weighted by x."""
        codes = self.process_codes(noise, first, x.shape[2], side).to(x.dtype)
        return torch.einsum("bhnd,hdnr->bhnr", x, codes)

    def numbers_per_position(self, batch: int, num_columns: int) -> int:
        """Return about how many numbers :meth:`encode` holds per position."""
        return math.prod(self.shape) * num_columns + self.shape[0] * num_columns * batch

    def _shares(self) -> tuple[Tensor, Tensor]:
        """Return the weights of the constant and of the process, [*T]: the roots of the gate and its complement."""
        assert self.gate is not None
        gate = wide(self.gate)
        # In logarithms, since the root of a gate that underflows has no finite slope.
        return (F.logsigmoid(gate) / 2).exp(), (F.logsigmoid(-gate) / 2).exp()


class SineTemplates(Templates):
    r"""Sums of cosines (sineSPE).

    .. math:: P(\ell) = \sum_{k=1}^{K} \lambda_k^2 \cos(2\pi f_k \ell + \theta_k), \qquad
        \lambda_k > 0, \quad 0 < f_k < \tfrac12

    K is ``num_sines``. Initially, gains are equal with P(0) = 1, phases are 0, and frequencies are random and low.
    """

    def __init__(self, shape: tuple[int, ...], num_sines: int = _DEFAULT_SINES, gated: bool = True) -> None:
        # A cosine and a sine for every k.
        super().__init__(Sources(shape, fixed=2 * num_sines), gated)
        self.num_sines = num_sines
        # Gains are the softplus of a parameter, and frequencies half the sigmoid of one.
        start = math.log(math.expm1(num_sines**-0.5))
        self.raw_gains = nn.Parameter(torch.full((*shape, num_sines), start))
        self.raw_frequencies = nn.Parameter(torch.randn(*shape, num_sines) - 4.0)
        self.phases = nn.Parameter(torch.zeros(*shape, num_sines))

    def gains(self) -> Tensor:
        r"""Return the gains :math:`\lambda`, [*T, K]."""
        return F.softplus(wide(self.raw_gains))

    def frequencies(self) -> Tensor:
        """Return the frequencies f in cycles per position, [*T, K]."""
        return wide(self.raw_frequencies).sigmoid() / 2

    def process_template(self, lags: Tensor) -> Tensor:
        """The sum of cosines."""
        cosines = self._angles(lags, phased=True).cos()
        return torch.einsum("...kl,...k->...l", cosines, self.gains().square())

    def process_codes(self, noise: Tensor, first: int, count: int, side: Side) -> Tensor:
        """Cosines and sines, whose products give cos(a - b) for angles of query and key, times scaled noise."""
        return self._waves(first, count, side, noise.device).mT @ self._scaled(noise)

    def encode_process(self, x: Tensor, noise: Tensor, first: int, side: Side) -> Tensor:
        """Multiply inputs times waves by the noise of all dimensions at once, unless codes are smaller."""
        if len(x) * self.sources_per_code > noise.shape[-1]:
            return super().encode_process(x, noise, first, side)
        waves = self._waves(first, x.shape[2], side, x.device)  # [H, D, 2K, N]
        spread = x.unsqueeze(-1) * waves.permute(0, 3, 1, 2).to(x.dtype)  # [B, H, N, D, 2K]
        return spread.flatten(-2) @ self._scaled(noise).flatten(1, 2).to(x.dtype)

    def numbers_per_position(self, batch: int, num_columns: int) -> int:
        """Codes, or inputs times waves."""
        spread = min(batch * self.sources_per_code, num_columns)
        return math.prod(self.shape) * spread + self.shape[0] * num_columns * batch

    def _angles(self, positions: Tensor, phased: bool) -> Tensor:
        """Return the angles at integer positions [N], as [*T, K, N]."""
        frequencies = self.frequencies()
        # Turns are computed in float64: at position 100,000, float32 would be off by a hundredth.
        turns = frequencies.double()[..., None] * positions.to(frequencies.device, torch.float64)
        angles = (2.0 * math.pi * (turns - turns.detach().floor())).to(frequencies.dtype)
        return angles + wide(self.phases)[..., None] if phased else angles

    def _waves(self, first: int, count: int, side: Side, device: torch.device) -> Tensor:
        angles = self._angles(torch.arange(first, first + count, device=device), phased=side == "query")
        return torch.cat([angles.cos(), angles.sin()], dim=-2)  # [*T, 2K, N]

    def _scaled(self, noise: Tensor) -> Tensor:
        gains = self.gains()
        return torch.cat([gains, gains], dim=-1)[..., None] * noise


class ConvTemplates(Templates):
    r"""Correlations of two filters (convSPE).

    .. math:: P(\ell) = \sum_p \varphi^Q_p\, \varphi^K_{p - \ell}

    Filters have the length ``kernel_size``; from this lag on, P is 0. At first, they are positive and random, with P(0)
    about 1.
    """

    def __init__(self, shape: tuple[int, ...], kernel_size: int = _DEFAULT_KERNEL, gated: bool = True) -> None:
        # One source per position, including those that the filters look back to.
        super().__init__(Sources(shape, before=kernel_size - 1), gated)
        self.kernel_size = kernel_size
        scale = 2.0 / math.sqrt(kernel_size)
        self.query_filter = nn.Parameter(scale * torch.rand(*shape, kernel_size))
        self.key_filter = nn.Parameter(scale * torch.rand(*shape, kernel_size))

    def process_template(self, lags: Tensor) -> Tensor:
        """The correlation of the filters at every lag."""
        query, key = wide(self.query_filter).flatten(0, -2), wide(self.key_filter).flatten(0, -2)
        size = self.kernel_size
        # One channel per template: P(-size + 1), ..., P(size - 1).
        found = _correlate(key, F.pad(query, (size - 1, size - 1))[..., None]).squeeze(-1)
        lags = lags.to(found.device)
        inside = lags.abs() < size
        return torch.where(inside, found[:, torch.where(inside, lags + size - 1, 0)], 0.0).unflatten(0, self.shape)

    def process_codes(self, noise: Tensor, first: int, count: int, side: Side) -> Tensor:  # noqa: ARG002
        """White noise, filtered by the filter of one side."""
        taps = wide(self.query_filter if side == "query" else self.key_filter).flatten(0, -2)
        signal = noise[..., : count + self.kernel_size - 1, :].flatten(0, -3).to(taps.dtype)
        # A filter looks back, while a correlation looks ahead.
        return _correlate(taps.flip(-1), signal).unflatten(0, self.shape)


def make_templates(
    shape: tuple[int, ...], kind: Kind, num_sines: int | None, kernel_size: int | None, gated: bool
) -> Templates:
    """Return templates of a kind. Raises if an option belongs to the other kind."""
    check_choice("kind", kind, get_args(Kind))
    if kind == "sine":
        if kernel_size is not None:
            raise ValueError("`kernel_size` is only for kind='conv'. Leave it out, or pass num_sines.")
        num_sines = _DEFAULT_SINES if num_sines is None else num_sines
        check_integer("num_sines", num_sines, 1)
        return SineTemplates(shape, num_sines, gated)
    if num_sines is not None:
        raise ValueError("`num_sines` is only for kind='sine'. Leave it out, or pass kernel_size.")
    kernel_size = _DEFAULT_KERNEL if kernel_size is None else kernel_size
    check_integer("kernel_size", kernel_size, 1)
    return ConvTemplates(shape, kernel_size, gated)


def check_seed(seed: object) -> int:
    """Return a checked seed, or a new one from torch's generator for None."""
    if seed is None:
        with plainly():
            return int(torch.randint(2**62, (), device="cpu"))
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"`seed` must be a 64-bit integer, but is {seed!r}.")
    return seed


def save_seed(seed: int) -> Tensor:
    """Return what a checkpoint needs to draw the same noise again, [2]: the version of the noise and the seed."""
    return torch.tensor([NOISE_VERSION, seed], device="cpu")


def load_seed(state: Tensor) -> int:
    """Return the seed of a checkpoint. Raises if it would give different noise here."""
    numbers = state.flatten().tolist()
    if len(numbers) != 2 or numbers[0] != NOISE_VERSION:
        raise ValueError(
            f"The noise of a checkpoint must be saved as [version={NOISE_VERSION}, seed], but is {numbers}. "
            "Load it with the release that saved it."
        )
    return check_seed(numbers[1])


def wide(x: Tensor) -> Tensor:
    """Cast to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _correlate(taps: Tensor, signal: Tensor) -> Tensor:
    """Sum taps[s, p] signal[s, i + p, r] over p, for taps [S, P] and a signal [S, N + P - 1, R], into [S, N, R].

    Uses products with banded matrices: torch's convolution with one filter per channel is no faster, and 30 times
    slower in float64.
    """
    num_channels, size = taps.shape
    if torch.compiler.is_compiling():
        # Compiled code with a loop over blocks would work for one length only.
        return F.conv1d(signal.movedim(-1, 0), taps[:, None], groups=num_channels).movedim(0, -1)
    count = signal.shape[1] - size + 1
    block = min(_POSITIONS_PER_BLOCK, max(1, count))
    # Long signals are cut into segments that are processed side by side, so that there are few blocks.
    segment = block * max(_BLOCKS_PER_SEGMENT, size // _BLOCKS_PER_SEGMENT)
    num_segments = max(1, math.ceil(count / segment))
    if num_segments > 1:
        padded = F.pad(signal, (0, 0, 0, num_segments * segment - count))
        signal = padded.unfold(1, segment + size - 1, segment).mT.flatten(0, 1)
    band = _band(taps, block).repeat_interleave(num_segments, dim=0)
    length = signal.shape[1] - size + 1
    parts = [signal[:, :0]]
    for start in range(0, length, block):
        rows = min(block, length - start)
        width = rows + size - 1
        parts.append(band[:, :rows, :width] @ signal[:, start : start + width])
    return torch.cat(parts, dim=1).unflatten(0, (num_channels, num_segments)).flatten(1, 2)[:, :count]


def _band(taps: Tensor, num_rows: int) -> Tensor:
    """Return matrices whose row i has the taps from column i on, [S, num_rows, num_rows + P - 1]."""
    num_channels, size = taps.shape
    # Taps and zeros, repeated periodically and read in rows that are one shorter than the period.
    period = F.pad(taps, (0, num_rows))[:, None].expand(-1, num_rows, -1).reshape(num_channels, -1)
    return period[:, : num_rows * (num_rows + size - 1)].unflatten(1, (num_rows, num_rows + size - 1))


def _normal(
    seed: Tensor | int,
    purpose: int,
    shape: tuple[int, ...],
    sources: tuple[int, int],
    num_columns: int,
    device: torch.device | str,
) -> Tensor:
    """Return normal noise with variance 1 / R, [*T, J, R], in float32."""
    first, count = sources
    state = torch.zeros((), dtype=torch.int64, device=device)
    state = random.absorb(random.absorb(state, torch.as_tensor(seed, device=device)), purpose)
    state = random.absorb(state, torch.arange(math.prod(shape), device=device)[:, None])
    state = random.absorb(state, torch.arange(first, first + count, device=device)).reshape(-1, 1)
    # One hash gives two columns.
    columns = torch.arange((num_columns + 1) // 2, device=device)
    blocked = state.device.type == "cpu" and not torch.compiler.is_compiling()
    step = max(1, _HASHES_PER_BLOCK // len(columns)) if blocked else len(state)
    parts = [
        (random.normal_pair(random.absorb(part, columns)).flatten(-2) * num_columns**-0.5).to(torch.float32)
        for part in state.split(step)
    ]
    return torch.cat(parts)[:, :num_columns].reshape(*shape, count, num_columns)
