// Package sqlsuite tests package fence on real databases. It is a module of its own because of the
// drivers.
package sqlsuite
