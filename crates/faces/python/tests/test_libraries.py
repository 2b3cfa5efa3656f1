"""Libraries that know nothing of farpage."""

import numpy as np
import pandas as pd
from joblib.externals.loky import get_reusable_executor
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDClassifier

import farpage as fp


def test_scikit_learn_fits_as_on_plain_arrays(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4000, 20))
    y = (x[:, 0] > 0).astype(int)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    data = fp.load(tmp_path / "data.npz", ram="4M")

    def fit(x, y):
        return SGDClassifier(random_state=1, max_iter=5, tol=None).fit(x, y)

    np.testing.assert_array_equal(fit(data["x"], data["y"]).coef_, fit(x, y).coef_)
    means = MiniBatchKMeans(3, random_state=1, n_init=1)
    np.testing.assert_array_equal(means.fit_predict(data["x"]), means.fit_predict(x))


def test_scikit_learn_sends_arrays_to_its_workers(tmp_path):
    from sklearn.model_selection import cross_val_score

    rng = np.random.default_rng(3)
    np.save(tmp_path / "x.npy", rng.standard_normal((4000, 20)))
    x = fp.load(tmp_path / "x.npy")
    y = np.asarray(x[:, 0] > 0)
    model = SGDClassifier(random_state=1, max_iter=5, tol=None)
    mine = cross_val_score(model, x, y, n_jobs=2)
    np.testing.assert_array_equal(mine, cross_val_score(model, np.array(x), y))
    get_reusable_executor().shutdown()


def test_numpy_and_pandas_work_on_mapped_arrays(numbers):
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 4), ram="4M")
    values = numbers[1].reshape(-1, 4)
    np.testing.assert_array_equal(np.sort(array[:, 0]), np.sort(values[:, 0]))
    np.testing.assert_array_equal(array @ np.ones(4), values @ np.ones(4))
    np.testing.assert_array_equal(np.where(array > 0, array, 0), np.where(values > 0, values, 0))
    np.testing.assert_array_equal(np.concatenate([array[:5], array[-5:]])[7], values[-3])
    frame = pd.DataFrame(array, columns=list("abcd"))
    assert frame["b"].mean() == pd.DataFrame(values, columns=list("abcd"))["b"].mean()
