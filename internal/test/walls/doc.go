// Package walls has no code. Its tests read the source of the repository: which package imports
// what, and what the library does not do.
package walls
