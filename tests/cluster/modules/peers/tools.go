//go:build tools

// Package tools names what is built from this module, so that `go mod tidy` keeps it.
package tools

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "sigs.k8s.io/jobset"
)
