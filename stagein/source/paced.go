package source

// Paced returns fs with reads that first call take with their size and wait for it.
func Paced(fs FS, take func(n int64) error) FS { return paced{fs, take} }

type paced struct {
	FS
	take func(n int64) error
}

// Open implements FS.
func (p paced) Open(path string) (File, error) {
	f, err := p.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return pacedFile{f, p.take}, nil
}

type pacedFile struct {
	File
	take func(n int64) error
}

// ReadAt implements io.ReaderAt.
func (f pacedFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.take(int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

// Unwrap implements Wrapper.
func (f pacedFile) Unwrap() File { return f.File }
