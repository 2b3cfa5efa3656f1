"""scikit-learn: fits three models on one synthetic table. usage: sklearn_fit.py MIB"""
import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from common import SEED, digest, size_mib

features = 32
rows = (size_mib() << 17) // features // 3
rng = np.random.default_rng(SEED)
x = rng.normal(size=(rows, features))
y = x @ rng.normal(size=features) + rng.normal(size=rows)
scaled = StandardScaler().fit_transform(x)
ridge = Ridge(solver="cholesky").fit(scaled, y)
print("ridge", digest(ridge.coef_))
pca = PCA(n_components=8, svd_solver="covariance_eigh").fit(scaled)
print("pca", digest(pca.components_))
kmeans = KMeans(n_clusters=4, n_init=1, max_iter=4, random_state=1).fit(scaled)
print("kmeans", digest(kmeans.labels_), digest(kmeans.cluster_centers_))
