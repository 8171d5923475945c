"""Manifests for Kubernetes. Python here only generates lists that are committed."""
