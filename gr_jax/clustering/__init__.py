"""k-means, hierarchical k-means, residual quantisation and other clusterings of document embeddings."""

from gr_jax.clustering.agglomerative import agglomerative as agglomerative
from gr_jax.clustering.balanced import balanced_kmeans as balanced_kmeans
from gr_jax.clustering.boundaries import cluster_means as cluster_means
from gr_jax.clustering.boundaries import nearby_clusters as nearby_clusters
from gr_jax.clustering.grouped import GroupedKMeans as GroupedKMeans
from gr_jax.clustering.grouped import kmeans_of_groups as kmeans_of_groups
from gr_jax.clustering.hierarchical import ClusterTree as ClusterTree
from gr_jax.clustering.hierarchical import cluster_hierarchically as cluster_hierarchically
from gr_jax.clustering.kmeans import KMeans as KMeans
from gr_jax.clustering.kmeans import assign as assign
from gr_jax.clustering.kmeans import check_embeddings as check_embeddings
from gr_jax.clustering.kmeans import kmeans as kmeans
from gr_jax.clustering.residual_quantization import ResidualQuantization as ResidualQuantization
from gr_jax.clustering.residual_quantization import fit_to_codes as fit_to_codes
from gr_jax.clustering.residual_quantization import learn_codebooks as learn_codebooks
from gr_jax.clustering.residual_quantization import quantize as quantize
from gr_jax.clustering.residual_quantization import reconstruct as reconstruct
from gr_jax.clustering.residual_quantization import residual_quantization as residual_quantization
