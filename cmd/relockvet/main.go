// Command relockvet reports wrong uses of relock, by itself or as a tool of go vet. The rules are
// those of package [relockvet].
//
//	relockvet ./...
//	go vet -vettool=$(command -v relockvet) ./...
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/go-relock/relock/cmd/relockvet/analyzer"
)

// main serves the command line, and the protocol of go vet as well.
func main() { singlechecker.Main(relockvet.Analyzer) }
