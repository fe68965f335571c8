// Package measurestest has the events of locks, and what metrics count of them: one table for all
// modules that export metrics.
package measurestest
