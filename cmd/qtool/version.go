package main

import "runtime/debug"

// release is the version of the tool. It is part of what a packed file says of its making, so it
// changes with every change of the bytes that the same input gives.
const release = "0.1.0"

// version gives the release and, when the build knows it, the revision.
func version() string {
	v := release
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v += " (" + s.Value[:12] + ")"
			}
		}
	}
	return v
}
