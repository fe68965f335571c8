package relock

import (
	"embed"
	"io/fs"
	"sync"

	"github.com/go-relock/relock/internal/redisstore"
)

// This file loads the Lua scripts. The header of a script says what the script does. Package
// redisstore sends the scripts.

//go:embed scripts/*.lua scripts/*/*.lua
var sources embed.FS

// scripts returns the scripts, loaded once for all clients of the process.
var scripts = sync.OnceValue(func() *redisstore.Scripts {
	folder, err := fs.Sub(sources, "scripts")
	if err != nil {
		panic(err) // the folder is part of the build
	}
	return redisstore.LoadScripts(folder)
})
