//go:build race

package budget_test

// The race detector allocates by itself.
func init() { exact = false }
