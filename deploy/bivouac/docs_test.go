package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"

	"github.com/bivouacfs/bivouac/deploy/pitch"
)

// shown is a piece of code in a document.
type shown struct {
	where    string // document and line number
	language string // of a fenced block; "" for others
	fenced   bool   // to be copied verbatim; others have placeholders
	text     string
}

// code returns the code of all documents.
func code(t *testing.T) []shown {
	t.Helper()
	names, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "../../README.md", "../../ARCHITECTURE.md", "../../fsclient/python/README.md")
	var all []shown
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		add := func(at int, s shown) {
			s.where = fmt.Sprintf("%s:%d", filepath.Base(name), 1+strings.Count(string(b[:at]), "\n"))
			all = append(all, s)
		}
		doc := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(b))
		err = ast.Walk(doc, func(n ast.Node, enter bool) (ast.WalkStatus, error) {
			if !enter {
				return ast.WalkContinue, nil
			}
			switch n := n.(type) {
			case *ast.FencedCodeBlock:
				add(n.Lines().At(0).Start, shown{language: string(n.Language(b)), fenced: true, text: string(n.Lines().Value(b))})
			case *ast.CodeBlock:
				add(n.Lines().At(0).Start, shown{text: string(n.Lines().Value(b))})
			case *ast.CodeSpan:
				var s strings.Builder
				at := 0
				for c := n.FirstChild(); c != nil; c = c.NextSibling() {
					if c, ok := c.(*ast.Text); ok {
						at = c.Segment.Start
						s.Write(c.Segment.Value(b))
					}
				}
				add(at, shown{text: strings.ReplaceAll(strings.ReplaceAll(s.String(), `\|`, "|"), "\n", " ")})
			}
			return ast.WalkContinue, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestDocumentedCommands: each command line in a document, and in the help of a command, uses existing commands and
// flags; those in fenced blocks are complete. The same holds for the options of jobs.
func TestDocumentedCommands(t *testing.T) {
	commands, options := 0, 0
	for _, s := range code(t) {
		for line := range strings.Lines(joined(s.text)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "bin/")
			var err error
			switch {
			case strings.HasPrefix(line, "bivouac ") && (s.language == "" || s.language == "bash"):
				commands++
				err = checkCommand(line, s.fenced)
			case strings.HasPrefix(line, "#SBATCH --bivouac") || strings.HasPrefix(line, "--bivouac"):
				options++
				err = checkJobOption(strings.TrimPrefix(line, "#SBATCH "))
			}
			if err != nil {
				t.Errorf("%s: %s: %v", s.where, line, err)
			}
		}
	}
	if commands < 50 || options < 10 {
		t.Errorf("found %d commands and %d options of jobs", commands, options)
	}
	examples(t, root())
}

// joined returns text with continued lines joined.
func joined(text string) string { return strings.ReplaceAll(text, "\\\n", " ") }

// TestHelp: the help of the program lists the commands first, then the keys; the help of a command that a user runs
// with arguments or flags has an example.
func TestHelp(t *testing.T) {
	c := root()
	var b strings.Builder
	c.SetOut(&b)
	c.SetArgs([]string{"--help"})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []string{"Usage:", "\n  stage-in ", "\nFor administrators:", "\nKeys of --bivouac-opts:\n\n    wait="} {
		i := strings.Index(b.String()[at:], want)
		if i < 0 {
			t.Fatalf("bivouac --help lacks %q, or has it too early:\n%s", want, &b)
		}
		at += i
	}
	b.Reset()
	c.SetArgs([]string{"wait", "--help"})
	if err := c.Execute(); err != nil || strings.Contains(b.String(), "--bivouac-opts") {
		t.Errorf("bivouac wait --help: %v: %s", err, &b)
	}
	var exampled func(*cobra.Command)
	exampled = func(c *cobra.Command) {
		if slurm := c.Name() == "prolog" || c.Name() == "epilog"; c.Runnable() && !c.Hidden && !slurm && c.HasLocalFlags() && c.Example == "" {
			t.Errorf("%s --help has no example", c.CommandPath())
		}
		for _, s := range c.Commands() {
			exampled(s)
		}
	}
	exampled(root())
}

func examples(t *testing.T, c *cobra.Command) {
	t.Helper()
	for line := range strings.Lines(joined(c.Example)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "bivouac ") {
			continue
		}
		if err := checkCommand(line, true); err != nil {
			t.Errorf("%s --help: %s: %v", c.CommandPath(), line, err)
		}
	}
	for _, s := range c.Commands() {
		examples(t, s)
	}
}

// checkCommand checks a command line; unless complete is set, only the names of the command and of the flags.
func checkCommand(line string, complete bool) error {
	args := words(line)[1:]
	c := root()
	c.InitDefaultCompletionCmd()
	c.InitDefaultHelpCmd()
	cmd, rest, err := c.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if complete {
		if err := cmd.ParseFlags(rest); err != nil {
			return err
		}
		rest = cmd.Flags().Args()
		if err := errors.Join(cmd.ValidateArgs(rest), cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
			return err
		}
	}
	for _, a := range rest {
		name, _, _ := strings.Cut(strings.Trim(a, "[]"), "=")
		switch {
		case strings.HasPrefix(name, "--") && cmd.Flags().Lookup(name[2:]) == nil:
			return fmt.Errorf("no flag %s", name)
		case !strings.HasPrefix(name, "-") && cmd.HasSubCommands():
			for alternative := range strings.SplitSeq(name, "|") {
				if !slices.ContainsFunc(cmd.Commands(), func(s *cobra.Command) bool { return s.Name() == alternative }) {
					return fmt.Errorf("no command %s", alternative)
				}
			}
		}
	}
	switch {
	case len(rest) == 0 || strings.Contains(rest[0], "["):
	case cmd.Name() == "stage-in":
		_, err = pitch.ParseStageIn(rest[0])
	case cmd.Name() == "stage-out":
		_, err = pitch.ParseStageOut(rest[0])
	}
	return err
}

// checkJobOption checks an option of sbatch.
func checkJobOption(line string) error {
	name, value, _ := strings.Cut(words(line)[0], "=")
	var err error
	switch name {
	case "--bivouac":
	case "--bivouac-stage-in":
		if value != "" && !strings.Contains(value, "[") {
			_, err = pitch.ParseStageIn(value)
		}
	case "--bivouac-stage-out":
		if value != "" {
			_, err = pitch.ParseStageOut(value)
		}
	case "--bivouac-opts":
		if !strings.Contains(value, "KEY=") {
			_, err = pitch.CheckOptions(nil, nil, value, nil)
		}
	default:
		err = errors.New("no such option")
	}
	return err
}

// words splits a line like a shell, up to a comment; it understands only quotes.
func words(line string) []string {
	var all []string
	var word strings.Builder
	var quote rune
	started := false
	end := func() {
		if started {
			all = append(all, word.String())
		}
		word.Reset()
		started = false
	}
	for _, r := range line {
		switch {
		case quote == 0 && (r == ' ' || r == '\t'):
			end()
		case quote == 0 && !started && strings.ContainsRune("#|>&;", r):
			return all
		case quote == 0 && (r == '\'' || r == '"'):
			quote, started = r, true
		case r == quote && quote != 0:
			quote = 0
		default:
			word.WriteRune(r)
			started = true
		}
	}
	end()
	return all
}

// TestCheckCommand: command lines that a document must not show are refused.
func TestCheckCommand(t *testing.T) {
	for line, want := range map[string]string{
		"bivouac up --dir /tmp/camp # four nodes":          "",
		"bivouac up --dri /tmp/camp":                       "unknown flag: --dri",
		"bivouac up":                                       "required flag",
		"bivouac launch":                                   "unknown command",
		"bivouac stage-in '/a/b.tar,order=seed:1' --job 7": "",
		"bivouac stage-in /a/b.tar,oder=seed:1":            "oder",
		"bivouac config chek":                              "no command chek",
		"bivouac wait --first N":                           "invalid argument",
	} {
		if err := checkCommand(line, true); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	for line, want := range map[string]string{
		"--bivouac-stage-in=/a,order=seed:1": "", "--bivouac-stage-in=/a,ordr=seed:1": "ordr", "--bivouac-stagein=/a": "no such option",
		"--bivouac-opts=wait=all": "", "--bivouac-opts=wiat=all": "wiat", "--bivouac-stage-out=ckpt": "FROM:TO",
	} {
		if err := checkJobOption(line); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// TestDocumentedPython: each Python block compiles.
func TestDocumentedPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	blocks := make(map[string]string)
	for _, s := range code(t) {
		if s.language == "python" {
			blocks[s.where] = s.text
		}
	}
	if len(blocks) == 0 {
		t.Error("no block of Python is found")
	}
	b, err := json.Marshal(blocks)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", "import json, sys\nfor where, text in json.load(sys.stdin).items(): compile(text, where, 'exec')")
	cmd.Stdin = strings.NewReader(string(b))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
