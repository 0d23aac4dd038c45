import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from topomask.nn import SparseRows
from topomask.nn.sparse_rows import apply_linear, drop_features


def matrix(num_rows: int = 7, num_columns: int = 5):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.4)
    dense[3] = 0
    return dense


def test_products_and_their_gradients_are_those_of_the_dense_matrix():
    rows = SparseRows.from_scipy(sp.csr_array(matrix()))
    dense = torch.from_numpy(matrix()).float()
    torch.testing.assert_close(rows.to_dense(), dense)
    assert (len(rows), rows.shape) == (7, (7, 5))
    for bias in (False, True):
        linear = nn.Linear(5, 3, bias=bias)
        found = []
        for x in (rows, dense):
            out = apply_linear(linear, x)
            found.append([out, *torch.autograd.grad(out.square().sum(), linear.parameters())])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_duplicates_are_added_and_zeros_left_out():
    coo = sp.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    rows = SparseRows.from_scipy(coo)
    assert len(rows.values) == 1
    assert rows.to_dense().tolist() == [[0.0, 3.0], [0.0, 0.0]]


def test_dropout_keeps_the_mean_and_is_for_training():
    torch.manual_seed(0)
    rows = SparseRows.from_scipy(sp.csr_array(np.ones((100, 100))))
    dropped = drop_features(rows, 0.5, training=True)
    assert set(dropped.values.tolist()) == {0.0, 2.0}
    # 10,000 fair coins: six standard deviations.
    assert abs(float(dropped.values.mean()) - 1) < 0.06
    assert drop_features(rows, 0.5, training=False) is rows
    assert drop_features(torch.ones(3), 0.0, training=True).tolist() == [1.0, 1.0, 1.0]


def test_moving_nowhere_is_free():
    rows = SparseRows.from_scipy(sp.csr_array(matrix()))
    assert rows.to("cpu") is rows
    assert rows.to("meta").values.is_meta


def test_weights_of_other_features_are_refused():
    rows = SparseRows.from_scipy(sp.csr_array(matrix()))
    with pytest.raises(ValueError, match=r"`x` must have shape \[5, C\] .*, but has shape \(3, 2\).* per feature"):
        rows @ torch.ones(3, 2)


def test_half_precision():
    rows, weights = SparseRows.from_scipy(sp.csr_array(matrix())), torch.randn(5, 3)
    for dtype in (torch.float16, torch.bfloat16):
        found = rows @ weights.to(dtype)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), rows @ weights, rtol=0.05, atol=0.05)


def test_the_matrix_that_is_given_stays_as_it_is():
    given = sp.csr_array((np.array([1.0, 0.0, 2.0]), np.array([1, 0, 2]), np.array([0, 1, 3])), shape=(2, 3))
    for part in (given.data, given.indices, given.indptr):
        part.flags.writeable = False
    assert SparseRows.from_scipy(given).to_dense().tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]
    assert (given.nnz, given.indices.tolist()) == (3, [1, 0, 2])
