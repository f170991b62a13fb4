"""k-means and hierarchical k-means over document embeddings."""

from gr_jax.clustering.hierarchical import ClusterTree as ClusterTree
from gr_jax.clustering.hierarchical import cluster_hierarchically as cluster_hierarchically
from gr_jax.clustering.kmeans import KMeans as KMeans
from gr_jax.clustering.kmeans import assign as assign
from gr_jax.clustering.kmeans import kmeans as kmeans
