// Package caller finds the line of a program that has called the library.
package caller

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
)

// library are the functions of relock and of what calls it on the way, and of the runtime.
var library = regexp.MustCompile(`^(runtime|testing|context|sync|time|github\.com/redis/go-redis/v9.*|` +
	`github\.com/go-relock/relock(/(store/.*|internal/([a-su-z].*|timers|test/stage)|locktest(/explore)?|order|leader|ticket|once(/http)?|fence))?)\.`)

// Line returns the innermost line of the program in the stack of the caller, as dir/file.go:12;
// empty in a goroutine of the library. Line calls passed, if passed is not nil, with each function
// of the library on the way.
func Line(passed func(function string)) string {
	var stack [64]uintptr
	return Of(stack[:runtime.Callers(2, stack[:])], passed)
}

// Of is Line of a stack of [runtime.Callers].
func Of(stack []uintptr, passed func(function string)) string {
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if !library.MatchString(f.Function) {
			dir, file := filepath.Split(f.File)
			return fmt.Sprintf("%s/%s:%d", filepath.Base(dir), file, f.Line)
		}
		if passed != nil {
			passed(f.Function)
		}
		if !more {
			return ""
		}
	}
}
