package show

import (
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// chartedPage returns a page with all charts.
func chartedPage(t *testing.T) string {
	t.Helper()
	s := job()
	s.Nodes = []daemon.NodeStatus{
		{ID: 0, Host: "a", State: cluster.Up, Load: &leader.Load{Traffic: daemon.Traffic{ReadLocal: 1 << 20, ReadRemote: 2 << 20, ReadSource: 1 << 20}}},
		{ID: 1, Host: "b", State: cluster.Up, Load: &leader.Load{Traffic: daemon.Traffic{ReadLocal: 2 << 20}}}, {ID: 2, Host: "c"},
	}
	s.Datasets[0].Name, s.Datasets[0].Source = "<b>set", "/s&t.tar"
	s.Datasets[0].Training = &daemon.TrainingStatus{Epochs: []training.Epoch{{Epoch: 0, StallP50: 0.010, StallP99: 0.040}, {Epoch: 1, StallP50: 0.001, StallP99: 0.002}}}
	s.Datasets = append(s.Datasets, daemon.DatasetStatus{Dataset: cluster.Dataset{ID: metadata.DatasetID(9), Name: "bad", Phase: cluster.Failed, Error: "no such file"}})
	var b strings.Builder
	if err := HTML(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHTML: the page is well formed, has a bar for each value on the scale of its chart, loads no other resource, and
// contains names chosen by users only as text.
func TestHTML(t *testing.T) {
	page := chartedPage(t)
	for d := xml.NewDecoder(strings.NewReader(page)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v\n%s", err, page)
		}
	}
	for _, want := range []string{
		"job 7 (3 nodes)", "&lt;b&gt;set: ready, 3 files", "/s&amp;t.tar", "bad: failed", "no such file",
		`<rect class="a" x="333.3" y="28" width="266.7"`, // staged from 1 to 3 s
		`<rect class="b" x="300.0" y="4" width="200.0"`, `<rect class="c" x="500.0" y="4" width="100.0"`, `<rect class="a" x="200.0" y="28" width="200.0"`,
		"Imbalance (most / mean): 1.33.", `<rect class="b" x="300.0" y="4" width="300.0"`, "10.0 ms, 40.0 ms", `viewBox="0 0 900 48"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"http", "<script", "src=", "<b>set"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

// TestHTMLInBrowser: Chromium renders the page, finds each bar, and paints bars of each colour.
func TestHTMLInBrowser(t *testing.T) {
	t.Parallel()
	browser, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("needs chromium-headless-shell")
	}
	page, dir := chartedPage(t), t.TempDir()
	file, picture := filepath.Join(dir, "report.html"), filepath.Join(dir, "report.png")
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), browser, "--no-sandbox", "--disable-gpu", "--user-data-dir="+dir, "--window-size=1000,1400", "--dump-dom", "--screenshot="+picture, "file://"+file)
	dom, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	if got, want := strings.Count(string(dom), "<rect"), strings.Count(page, "<rect"); got != want || want == 0 || strings.Contains(string(dom), "<b>set") {
		t.Errorf("the browser has %d bars, want %d:\n%s", got, want, dom)
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	shown, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	pixels := make(map[color.NRGBA]int)
	for y := range shown.Bounds().Dy() {
		for x := range shown.Bounds().Dx() {
			pixels[color.NRGBAModel.Convert(shown.At(x, y)).(color.NRGBA)]++
		}
	}
	for _, bar := range []color.NRGBA{{0x2a, 0x6f, 0xbb, 255}, {0x7f, 0xb3, 0xe6, 255}, {0xe0, 0x8a, 0x2e, 255}} { // .a, .b and .c of the page
		if pixels[bar] < 1000 { // the smallest bar is 100 by 16
			t.Errorf("%d pixels of %v are painted", pixels[bar], bar)
		}
	}
}

// TestHTMLOfNothing: a job that has just begun has a page as well.
func TestHTMLOfNothing(t *testing.T) {
	if err := HTML(io.Discard, daemon.Status{}); err != nil {
		t.Error(err)
	}
}
