package accessplan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Files lists the files of a dataset; manifest.Table implements it.
type Files interface {
	// Files calls fn with every name of a file, directory by directory, by name, until fn returns false.
	Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error
}

// Numbering numbers the files of a dataset as the training program does.
type Numbering struct {
	root string
	inos []metadata.Ino      // by number; 0 is a file that the dataset lacks
	of   map[uint16][]uint32 // by the part of an inode and its number in the part; the file's number plus one

	ranges []Range                   // by number; nil: every number is a whole file
	within map[metadata.Ino][]uint32 // the numbers of each file by offset, if there are ranges
}

// Root returns the directory below which the files are numbered.
func (n *Numbering) Root() string { return n.root }

// Len returns the number of numbered files.
func (n *Numbering) Len() int { return len(n.inos) }

// Ino returns the inode of a number, 0 if the dataset lacks the file.
func (n *Numbering) Ino(number int) metadata.Ino { return n.inos[number] }

// Of returns the number of an inode, or the least of its numbers if it has several names.
func (n *Numbering) Of(ino metadata.Ino) (number int, ok bool) {
	of := n.of[ino.Part()]
	if seq := int(ino.Seq()); seq < len(of) && of[seq] > 0 {
		return int(of[seq]) - 1, true
	}
	return 0, false
}

// add assigns ino the next number.
func (n *Numbering) add(ino metadata.Ino) {
	n.inos = append(n.inos, ino)
	if ino == 0 {
		return
	}
	seq, part := int(ino.Seq()), ino.Part()
	if k := seq + 1 - len(n.of[part]); k > 0 {
		n.of[part] = append(n.of[part], make([]uint32, k)...)
	}
	if n.of[part][seq] == 0 {
		n.of[part][seq] = uint32(len(n.inos))
	}
}

// imageExtensions equals torchvision.datasets.folder.IMG_EXTENSIONS.
var imageExtensions = map[string]bool{
	".jpg": true, ".jpeg": true, ".png": true, ".ppm": true, ".bmp": true,
	".pgm": true, ".tif": true, ".tiff": true, ".webp": true,
}

// trainDirs are the usual names of the directory with the training classes.
var trainDirs = []string{"train", "training"}

// found is a directory with files that could be numbered.
type found struct {
	path   string
	images []metadata.Ino
	others []metadata.Ino
}

// Number numbers the files of a plan. Without Paths they are numbered as torchvision's ImageFolder does: the
// first-level directories below the root, which are its classes, by name, the directories in each by path, and the
// images in each by name, all as strings. Other files are not counted, unless there is no image at all: then every file
// is.
func Number(files Files, p *Plan) (*Numbering, error) {
	if len(p.Paths) > 0 {
		return numberPaths(files, p)
	}
	dirs, err := findDirs(files)
	if err != nil {
		return nil, err
	}
	n := &Numbering{root: p.Root, of: make(map[uint16][]uint32)}
	n.root = cmp.Or(n.root, trainRoot(dirs))
	dirs = slices.DeleteFunc(dirs, func(d found) bool { return !within(d.path, n.root) })
	class := func(dir string) string {
		c, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(dir, n.root), "/"), "/")
		return c
	}
	slices.SortFunc(dirs, func(a, b found) int {
		return cmp.Or(cmp.Compare(class(a.path), class(b.path)), cmp.Compare(a.path, b.path))
	})
	for _, d := range dirs {
		if d.path == n.root { // ImageFolder searches only in classes
			continue
		}
		for _, ino := range d.images {
			n.add(ino)
		}
	}
	if n.Len() == 0 {
		for _, d := range dirs {
			for _, ino := range slices.Concat(d.images, d.others) {
				n.add(ino)
			}
		}
	}
	if n.Len() == 0 && p.Root != "" {
		return nil, fmt.Errorf("access plan: dataset %s has no file below %q: give root= a directory of the dataset: %w", p.Dataset, p.Root, syscall.EINVAL)
	}
	return n, nil
}

func findDirs(files Files) ([]found, error) {
	var dirs []found
	last := uint32(0)
	err := files.Files(func(dir string, number uint32, name string, a metadata.Attr) bool {
		if n := len(dirs); n == 0 || last != number {
			dirs, last = append(dirs, found{path: dir}), number
		}
		d := &dirs[len(dirs)-1]
		if imageExtensions[strings.ToLower(path.Ext(name))] {
			d.images = append(d.images, a.Ino)
		} else {
			d.others = append(d.others, a.Ino)
		}
		return true
	})
	return dirs, err
}

// trainRoot returns the directory of the training set, if the dataset has other directories beside it: a first-level
// directory with one of the trainDirs names that has images in subdirectories.
func trainRoot(dirs []found) string {
	for _, name := range trainDirs {
		for _, d := range dirs {
			if len(d.images) > 0 && strings.HasPrefix(d.path, name+"/") {
				return name
			}
		}
	}
	return ""
}

func within(dir, root string) bool {
	return root == "" || dir == root || strings.HasPrefix(dir, root+"/")
}

// numberPaths numbers the files, or ranges of files, that a plan lists: PATH:OFFSET+LENGTH, if no file has this name.
func numberPaths(files Files, p *Plan) (*Numbering, error) {
	named := make(map[string]metadata.Ino, len(p.Paths))
	for _, name := range p.Paths {
		named[path.Join(p.Root, name)] = 0
		if file, _, ok := splitRange(name); ok {
			named[path.Join(p.Root, file)] = 0
		}
	}
	err := files.Files(func(dir string, _ uint32, name string, a metadata.Attr) bool {
		full := name
		if dir != "" {
			full = dir + "/" + name
		}
		if _, ok := named[full]; ok {
			named[full] = a.Ino
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	n := &Numbering{root: p.Root, of: make(map[uint16][]uint32)}
	for i, name := range p.Paths {
		ino := named[path.Join(p.Root, name)]
		if file, r, ok := splitRange(name); ino == 0 && ok {
			if n.ranges == nil {
				n.ranges = make([]Range, len(p.Paths))
			}
			ino, n.ranges[i] = named[path.Join(p.Root, file)], r
		}
		n.add(ino)
	}
	if n.ranges != nil {
		n.index()
	}
	return n, nil
}
