"""A plan on a Kubernetes cluster, as data: manifests, and what a cluster's answers mean. Pure: none is asked here."""
