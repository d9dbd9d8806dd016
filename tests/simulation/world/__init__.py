"""The cluster that surrounds the operator: API server, nodes, kubelets, launchers, trainers."""
