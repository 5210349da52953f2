package stagein

// Key documents one option KEY=VALUE, for the help of commands and for the reference.
type Key struct {
	Name    string
	Values  string // values allowed after the "="
	Default string // in words if it is not a value
	Meaning string // one line of at most 160 characters
}

// Keys documents the options of a source, in the order of importance for a reader.
var Keys = []Key{
	{"unpack", "yes|no|apart|nested", "yes", "no keeps files as they are (a single one is NAME/FILE); apart unpacks archives into directories named after them; nested also unpacks tars inside a plain tar"},
	{"include", "PATTERN", "all files", "stage only files that match, by name, or by path if PATTERN has a slash; can be repeated"},
	{"exclude", "PATTERN", "none", "leave out files that match, and everything below directories that match; can be repeated"},
	{"list", "FILE", "all files", "stage only the paths in FILE, one per line or separated by NUL; a directory includes everything below it"},
	{"limit", "N", "none", "stage at most N files, for a test"},
	{"order", "ORDER", "shuffled", "order in which files are fetched: shuffled, source, seed:S, random:S, loader:S or list:FILE; the last four are prefetched in every epoch"},
	{"ranks", "R", "learned from the reads", "number of processes that share each epoch"},
	{"epochs", "E", "without end", "number of epochs"},
	{"root", "DIR", "the dataset, or train below it", "directory in the dataset that the sampler reads"},
	{"drop-last", "yes|no", "no", "yes if the sampler has drop_last=True"},
	{"overflow", "source|fail", "source", "files that do not fit: source reads them from there, fail refuses the dataset. They are chosen by hash; a compressed tar must always fit"},
	{"replicas", "N|all|spare", "none", "copies of each file beside its owner's, made when the dataset is ready; all: on every node; spare: as far as there is room"},
	{"index", "auto|cache|beside|PATH|off", "auto", "where to keep the index of a large tar, for the tree of the next job: your cache directory (auto), beside the archive, or a PATH with a slash"},
	{"on-error", "fail|skip", "fail", "skip leaves out entries that cannot be read, and the exit status is 3; of several members with one name, the last is kept"},
}
