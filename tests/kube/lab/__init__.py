"""A real Kubernetes on one machine, without Docker and without a registry: control plane, nodes, KubeRay, Kueue, KWOK.

programs -> keys -> sandbox -> parts -> nodes -> laboratory; `python -m tests.kube.lab --help` for people.
"""
