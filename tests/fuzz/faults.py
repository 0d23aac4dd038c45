"""Faults to plant: each replaces a piece of source that must be there exactly once."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A mutation of a file below ``src/topomask``."""

    name: str
    file: str
    old: str
    new: str
    backend: str = "auto"


FAULTS = (
    Fault(
        "the last entry of a row is dropped",
        "ops/sparse_product/numba.py",
        "while p < end:\n                        x0, w0 = source",
        "while p + 1 < end:\n                        x0, w0 = source",
    ),
    Fault(
        "wrong sign of the normaliser's gradient",
        "ops/pair_attention/numba/rows.py",
        "by_total -= by_numerator[d] * out[item, i, d]",
        "by_total += by_numerator[d] * out[item, i, d]",
    ),
    Fault(
        "a term of the gradient of linear scores is dropped",
        "ops/pair_attention/numba/rows.py",
        "by_score[p] = through_value + through_total\n",
        "by_score[p] = through_value\n",
    ),
    Fault(
        "all heads add to the gradient of the first",
        "ops/pair_attention/numba/rows.py",
        "head = item % num_heads\n",
        "head = 0\n",
    ),
    Fault(
        "signs of queries forgotten in the absolute normaliser's gradient",
        "ops/pair_attention/numba/rows.py",
        "slope * np.sign(q[i, a]) * abs(k[j, a])",
        "slope * abs(k[j, a])",
    ),
    Fault(
        "wrong index: heads that share walks read the first one's gradient",
        "ops/feature_values/numba.py",
        "g = np.float64(grad[head, p])",
        "g = np.float64(grad[0, p])",
    ),
    Fault(
        "a stale sum: products of features are not cleared between rows",
        "ops/pair_values/numba.py",
        "                    total[pair_columns[p]] = 0\n",
        "",
    ),
    Fault(
        "off by one at the border of a tile",
        "ops/tiles/forward.py",
        "for r in range(min(LANES, tiles.num_rows - tile * LANES)):",
        "for r in range(min(LANES - 1, tiles.num_rows - tile * LANES)):",
    ),
    Fault(
        "magnitudes forgotten in the gradient of pairs processed alone",
        "ops/tiles/backward.py",
        "slope = weights[x] * by_value + magnitudes[x] * by_total",
        "slope = weights[x] * by_value + weights[x] * by_total",
    ),
    Fault(
        "padding is seen in tiles",
        "ops/tiles/powers.py",
        "if not is_key[tiles.keys[k]]:",
        "if not is_key[tiles.keys[tiles.starts[tile]]]:",
    ),
    Fault(
        "magnitudes forgotten in the gradient of dense attention",
        "ops/dense_attention/reference.py",
        "slopes.by_head.addcmul_(fall_by_head, magnitudes)",
        "slopes.by_head.addcmul_(fall_by_head, weights)",
    ),
    Fault(
        "magnitudes forgotten in the compiled gradient of dense attention",
        "ops/dense_attention/numba.py",
        "by_total = multiply(builder, fall, load(builder, magnitudes, place))\n            slopes.append",
        "by_total = multiply(builder, fall, load(builder, weights, place))\n            slopes.append",
    ),
    Fault(
        "wrong sign in the gradient of a quotient",
        "ops/quotient.py",
        "return share, -(share * out)",
        "return share, (share * out)",
    ),
    Fault(
        "a missing factor 2 in the Chebyshev recurrence",
        "ops/diffusion/numba.py",
        "one if k == 1 else two",
        "one",
    ),
    Fault(
        "a missing scale in the derivative of a diffusion time",
        "ops/diffusion/__init__.py",
        ".sum(dim=(1, 2)) * diffusion.bounds[0]",
        ".sum(dim=(1, 2))",
    ),
    Fault(
        "what is contained twice is not taken off on trees",
        "ops/forest_sums/numba.py",
        "sums[i, c] = rest * sums[i, c] + factor * sums[p, c]",
        "sums[i, c] = sums[i, c] + factor * sums[p, c]",
    ),
    Fault(
        "one direction is dropped from the gradient of a table",
        "ops/forest_table/numba.py",
        " + sums[j, c] * grad_sums[i, c]",
        "",
    ),
    Fault(
        "a clamp of exponents in elu",
        "attention/feature_maps.py",
        "x.clamp(max=0.0).exp()",
        "x.clamp(-2.0, 0.0).exp()",
    ),
    Fault(
        "padded keys are left in the features",
        "attention/inputs.py",
        "phi_k if inputs.is_key is None else phi_k.masked_fill(~inputs.is_key, 0.0)",
        "phi_k",
    ),
    Fault(
        "the magnitude of a walk mask keeps the signs of f",
        "masks/walking.py",
        "f = self._f.abs() if self._absolute else self._f\n",
        "f = self._f\n",
    ),
    Fault(
        "a stale operator: changes of parameters are not noticed",
        "masks/kept.py",
        "and all(a.is_same(b) for a, b in zip(self.state, state, strict=True))",
        "",
    ),
    Fault(
        "offsets of a Toeplitz mask are turned around",
        "masks/toeplitz.py",
        "offset = keys // below % size - (queries // below % size)[:, None]",
        "offset = (queries // below % size)[:, None] - keys // below % size",
    ),
    Fault(
        "the survival of walks that may halt is forgotten",
        "ops/sample_walks/numba/loads.py",
        "total / scales.divisors[length]",
        "total / scales.divisors[0]",
    ),
    Fault(
        "reference: signs of keys forgotten in the absolute normaliser's gradient",
        "ops/pair_attention/reference.py",
        'grads["k"][g] = k.sign() * spmm',
        'grads["k"][g] = spmm',
        "reference",
    ),
    Fault(
        "reference: signs of loads forgotten in the gradient of f",
        "ops/feature_values/reference.py",
        "* walks.loads).to(torch.float64)",
        "* walks.loads.abs()).to(torch.float64)",
        "reference",
    ),
    Fault(
        "reference: products of sparse rows read the wrong head",
        "ops/sparse_product/reference.py",
        "torch.sum(a[head, rows[part]] * b[head, columns[part]], dim=1",
        "torch.sum(a[head, rows[part]] * b[0, columns[part]], dim=1",
        "reference",
    ),
)
