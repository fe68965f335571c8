// Package rueidiscompat stands in for a module that only the tests of redsync need. They are not run here, but go mod tidy
// asks for what they import, and not every module proxy has it.
package rueidiscompat
