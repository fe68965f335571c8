package relockotel

import "runtime/debug"

// version returns the version of this module in the running program; empty: the program does not
// say.
func version() string {
	info, known := debug.ReadBuildInfo()
	if !known {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == ScopeName {
			return m.Version
		}
	}
	return ""
}
