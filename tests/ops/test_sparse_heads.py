import pytest
import torch
from torch.autograd import gradcheck

from topomask.ops import segments
from topomask.ops.sparse_heads import densify, join_heads, multiply
from topomask.ops.sparse_product import Pattern, make_pattern

ROWS, COLUMNS = 5, 7


def sparse(num_heads: int, is_shared: bool, rows: int = ROWS, columns: int = COLUMNS) -> tuple:
    """A pattern, values [V, P], and the dense matrices [H, R, N] that they are."""
    generator = torch.Generator().manual_seed(num_heads)
    dense = torch.randn(num_heads, rows, columns, generator=generator, dtype=torch.float64)
    sets = 1 if is_shared else num_heads
    support = torch.rand(sets, rows, columns, generator=generator) < 0.4
    dense = dense * support
    if is_shared:
        return pattern_of(support[0]), dense[:, support[0]], dense
    whole = torch.block_diag(*support.unbind()) if num_heads > 1 else support[0]
    return pattern_of(whole), torch.block_diag(*dense.unbind())[whole][None], dense


def pattern_of(support: torch.Tensor) -> Pattern:
    row_ptr = segments.pointers(support.sum(dim=1))
    return make_pattern(row_ptr, support.nonzero()[:, 1], support.shape[1])


CASES = [(1, True), (3, True), (3, False)]


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (1, 1), (0, COLUMNS), (ROWS, 0)])
@pytest.mark.parametrize(("num_heads", "is_shared"), CASES)
def test_products_and_dense_matrices(num_heads, is_shared, shape):
    pattern, values, dense = sparse(num_heads, is_shared, *shape)
    assert len(values) == (num_heads if is_shared else 1)
    assert torch.equal(densify(pattern, values, num_heads, *shape), dense)
    for transpose in (False, True):
        matrix = dense.mT if transpose else dense
        for batch in ((), (2,), (2, 3), (0,)):
            for width in (0, 1, 4):
                x = torch.randn(*batch, matrix.shape[2], width, num_heads, dtype=torch.float64).movedim(-1, -3)
                found = multiply(pattern, values, x, num_heads, transpose)
                torch.testing.assert_close(found, matrix @ x)


def test_one_head_serves_any_number():
    pattern, values, dense = sparse(1, True)
    x = torch.randn(2, 3, COLUMNS, 4, dtype=torch.float64)
    torch.testing.assert_close(multiply(pattern, values, x, 1), dense @ x)
    matrix = torch.randn(COLUMNS, 2, dtype=torch.float64)
    torch.testing.assert_close(multiply(pattern, values, matrix, 1), dense[0] @ matrix)


@pytest.mark.parametrize(("num_heads", "is_shared"), CASES)
def test_gradients(num_heads, is_shared):
    pattern, values, _ = sparse(num_heads, is_shared)
    values.requires_grad_()
    for transpose in (False, True):
        size = ROWS if transpose else COLUMNS
        x = torch.randn(2, num_heads, size, 2, dtype=torch.float64, requires_grad=True)

        def product(values, x, transpose=transpose):
            return multiply(pattern, values, x, num_heads, transpose)

        assert gradcheck(product, (values, x))
        assert torch.autograd.gradgradcheck(product, (values, x))
    assert gradcheck(lambda values: densify(pattern, values, num_heads, ROWS, COLUMNS), values)


def test_half_precision_is_multiplied_in_float32():
    pattern = pattern_of(torch.ones(1, 3000, dtype=torch.bool))
    out = multiply(pattern, torch.ones(1, 3000, dtype=torch.float16), torch.ones(1, 3000, 1, dtype=torch.float16), 1)
    assert out.dtype == torch.float16
    assert out.item() == 3000
    third = torch.full((1, 3000, 1), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(multiply(pattern, torch.ones(1, 3000), third, 1).item(), 1000.0, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("num_heads", "is_shared"), CASES)
def test_heads_are_joined_as_patterns_have_them(num_heads, is_shared):
    """Scores of all pairs in a pattern are those of every input and head."""
    pattern, _, dense = sparse(num_heads, is_shared)
    heads = 3
    q = torch.randn(2, heads, ROWS, 4, dtype=torch.float64)
    k = torch.randn(2, heads, COLUMNS, 4, dtype=torch.float64)
    is_key = torch.rand(2, heads, COLUMNS) < 0.5
    (queries, keys), joined = join_heads((q, k), is_key, num_heads, *pattern.shape)
    assert queries.shape[1] == len(pattern.row_ptr) - 1
    assert keys.shape[1] == joined.shape[1] == len(pattern.column_ptr) - 1
    rows = segments.index(pattern.row_ptr)
    found = (queries[:, rows] * keys[:, pattern.columns.long()]).sum(dim=-1)[joined[:, pattern.columns.long()]]
    expected = (q @ k.mT)[((dense != 0) & is_key[:, :, None])]
    torch.testing.assert_close(found.sort().values, expected.sort().values)
    assert join_heads((q, k), None, num_heads, *pattern.shape)[1] is None


@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 5), (5, 0), (0, 0)])
def test_heads_without_queries_or_keys_are_joined_as_others(num_queries, num_keys):
    """Kernels read keys by the columns of the pattern: with its own columns for every head, all are in one row."""
    q, k = torch.randn(2, 3, num_queries, 4), torch.randn(2, 3, num_keys, 4)
    (queries, keys), _ = join_heads((q, k), None, 3, 3 * num_queries, 3 * num_keys)
    if num_queries or num_keys:
        assert queries.shape == (2, 3 * num_queries, 4)
        assert keys.shape == (2, 3 * num_keys, 4)
    (queries, keys), _ = join_heads((q, k), None, 3, num_queries, num_keys)
    assert queries.shape == (6, num_queries, 4)
    assert keys.shape == (6, num_keys, 4)
