"""Stochastic positional encoding (SPE) of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from topomask.graph.input import check_counts
from topomask.masks.mask import SeededModule
from topomask.masks.stochastic_codes import Kind, check_seed, load_seed, make_templates, save_seed

# Maximum number of elements in memory per chunk of positions.
_ELEMENTS_PER_CHUNK = 1 << 24


class StochasticPositionEncoding(SeededModule):
    r"""Relative positions for linear attention: random codes applied to queries and keys before the feature map.

    .. math:: \hat q_m = \sum_d q_{md}\,\bar Q_{d,m}, \quad \hat k_n = \sum_d k_{nd}\,\bar K_{d,n}, \qquad
        \mathbb{E}\,\hat q_m^\top \hat k_n = \sum_d q_{md}\,k_{nd}\,\big(\delta_d + (1 - \delta_d)\,P_d(m - n)\big)

    Each head and dimension has its own template :math:`P_d`, a sum of cosines (``kind="sine"``) or the correlation of
    two filters (``kind="conv"``), see :class:`~topomask.masks.stochastic_codes.SineTemplates` and
    :class:`~topomask.masks.stochastic_codes.ConvTemplates`. It takes O(N D R) time, multiplied by the number of cosines
    or the length of the filters. The N D R codes are never in memory all at once.

    All inputs of a batch share their noise. In training, each call draws new noise; in evaluation, ``seed`` determines
    the noise, the same in every call. Layers that are given the same :meth:`draw` share noise.

    Softmax attention and FAVOR+ divide scores by the square root of the width, which is now R: multiply both results by
    :math:`(R / D)^{1/4}` to divide by :math:`\sqrt D` instead.

    Args:
        head_dim: Width of queries and keys D.
        num_heads: Number of heads H.
        num_realizations: Width of the results R. The error of a product falls as :math:`1 / \sqrt R`.
        kind, num_sines, kernel_size: As in :class:`topomask.StochasticPositionMask`.
        gated: Whether to learn the constants :math:`\delta_d`, which start at one half. Otherwise they are 0.
        seed: Seed of the noise in evaluation. Default: drawn from torch's generator.

    Example:
        >>> import torch, topomask as tm
        >>> encoding = tm.nn.StochasticPositionEncoding(head_dim=16, num_heads=2, num_realizations=32)
        >>> q, k = torch.randn(2, 1, 2, 100, 16)
        >>> q_hat, k_hat = encoding(q, k)
        >>> q_hat.shape
        torch.Size([1, 2, 100, 32])

    References:
        Liutkus et al. (2021), Relative positional encoding for Transformers with linear complexity.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int = 1,
        num_realizations: int = 64,
        *,
        kind: Kind = "sine",
        num_sines: int | None = None,
        kernel_size: int | None = None,
        gated: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(head_dim=head_dim, num_heads=num_heads, num_realizations=num_realizations)
        self.head_dim, self.num_heads, self.num_realizations = head_dim, num_heads, num_realizations
        self.seed = check_seed(seed)
        self._offer_seed()
        self.templates = make_templates((num_heads, head_dim), kind, num_sines, kernel_size, gated)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a seed to pass to :meth:`forward` of this and other layers.

        Args:
            generator: The random generator. Default: torch's default generator.
        """
        device = "cpu" if generator is None else generator.device
        return torch.randint(2**62, (), generator=generator, device=device)

    def template(self, lags: Tensor) -> Tensor:
        """Return the exact templates, gates included, at integer lags m - n [L]: [H, D, L]."""
        return self.templates(lags)

    def forward(
        self, q: Tensor, k: Tensor, *, seed: Tensor | int | None = None, first_position: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Encode queries and keys.

        Args:
            q: Queries, [..., H, N_q, D].
            k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
            seed: Seed of the noise, from :meth:`draw` or an integer. Default: a new draw in training, ``self.seed`` in
                evaluation.
            first_position: Position of the first query and the first key. With the same seed, a position has the same
                code wherever a sequence starts.

        Returns:
            Queries, [..., H, N_q, R], and keys, [..., H, N_k, R], in their original dtypes.
        """
        self._check(q, k)
        self._follow()
        if seed is None:
            seed = self.draw() if self.training else self.seed
        with torch.autocast(q.device.type, enabled=False):
            query, key = (
                x.to(torch.promote_types(x.dtype, torch.float32)).reshape(math.prod(x.shape[:-3]), *x.shape[-3:])
                for x in (q, k)
            )
            key = key.repeat_interleave(self.num_heads // key.shape[1], dim=1)
            query, key = self._encode(query, key, seed, first_position)
        batch = q.shape[:-3]
        return query.reshape(*batch, *query.shape[1:]).to(q.dtype), key.reshape(*batch, *key.shape[1:]).to(k.dtype)

    @property
    def _own_seed(self) -> int:
        return self.seed

    def _take_seed(self, seed: int) -> None:
        self.seed = seed

    def _encode(self, q: Tensor, k: Tensor, seed: Tensor | int, start: int) -> tuple[Tensor, Tensor]:
        """Encode a chunk of positions at a time."""
        templates, width = self.templates, self.num_realizations

        def part(q: Tensor, k: Tensor, first: int) -> tuple[Tensor, Tensor]:
            noise = templates.noise(seed, first, max(q.shape[2], k.shape[2]), width, q.device)
            return templates.encode(q, noise, first, "query"), templates.encode(k, noise, first, "key")

        length = max(q.shape[2], k.shape[2])
        most = _ELEMENTS_PER_CHUNK // max(1, templates.numbers_per_position(len(q), width))
        # Chunks much shorter than the filters would spend most of the time on the positions before them.
        step = max(1, most, 2 * templates.sources_per_code)
        if length <= step:
            return part(q, k, start)
        parts = [
            # Recomputed in the backward pass: the codes would take N D R numbers.
            checkpoint(part, q[:, :, at : at + step], k[:, :, at : at + step], start + at, use_reentrant=False)
            for at in range(0, length, step)
        ]
        queries, keys = zip(*parts, strict=True)
        return torch.cat(queries, dim=2), torch.cat(keys, dim=2)

    def _check(self, q: Tensor, k: Tensor) -> None:
        for name, x in (("q", q), ("k", k)):
            if x.ndim < 3 or not x.is_floating_point() or x.shape[-1] != self.head_dim:
                raise ValueError(
                    f"`{name}` must have shape [..., H, N, head_dim={self.head_dim}] and a floating dtype, but has "
                    f"shape {tuple(x.shape)} and dtype {x.dtype}."
                )
        if q.shape[-3] != self.num_heads or not k.shape[-3] or self.num_heads % k.shape[-3]:
            raise ValueError(
                f"`q` must have num_heads={self.num_heads} heads, and `k` as many or a divisor of that, but they have "
                f"{q.shape[-3]} and {k.shape[-3]}."
            )
        if q.shape[:-3] != k.shape[:-3]:
            raise ValueError(f"`q` and `k` must match in batch, but have shapes {tuple(q.shape)} and {tuple(k.shape)}.")

    def get_extra_state(self) -> Tensor:
        """Return the seed of the noise in evaluation, for a checkpoint."""
        self._follow()
        return save_seed(self.seed)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the seed from a checkpoint."""
        self.seed = load_seed(state)
        self._offer_seed()

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, num_realizations={self.num_realizations}"
