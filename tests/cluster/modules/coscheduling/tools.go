//go:build tools

// Package tools names what is built from this module, so that `go mod tidy` keeps it.
package tools

import (
	_ "sigs.k8s.io/scheduler-plugins/cmd/controller"
	_ "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
)
