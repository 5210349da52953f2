package stagein

// Memory is the most that the stage-in or the fill of one dataset keeps of its
// bytes on a node: the pieces under way, and the window of what is read through.
// Who unpacks a compressed source may need source.MaxWindow more.
const Memory = defaultMemory + defaultWindow
