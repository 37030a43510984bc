package web

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"lmwarden/internal/bench/results"
)

// benchmarks are the measurements in a folder: each is a folder of its own with a
// results.json and, beside it, figures. The folder is never left, whatever a name
// or a link says.
type benchmarks struct {
	folder string // empty when there is none

	mu   sync.Mutex
	read map[string]benchmark // guarded by mu; by name
}

// benchmark is one measurement, or why it cannot be read.
type benchmark struct {
	Name    string
	Time    time.Time // of its file
	Results *results.Results
	Figures []string
	Problem string

	size int64
}

// limits of what is read.
const (
	maxBenchmarks    = 500
	maxBenchmarkFile = 64 << 20
)

// list is every measurement, the newest first. A folder that is not there holds
// none.
func (b *benchmarks) list() ([]benchmark, error) {
	if b.folder == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(b.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("benchmarks: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("benchmarks: %w", err)
	}
	var found []benchmark
	for _, e := range entries {
		if m, ok := b.at(root, e.Name()); ok {
			found = append(found, m)
		}
	}
	slices.SortStableFunc(found, func(a, b benchmark) int { return b.Time.Compare(a.Time) })
	return found[:min(len(found), maxBenchmarks)], nil
}

// get is the measurement of a name.
func (b *benchmarks) get(name string) (benchmark, bool) {
	if b.folder == "" || !plainName(name) {
		return benchmark{}, false
	}
	root, err := os.OpenRoot(b.folder)
	if err != nil {
		return benchmark{}, false
	}
	defer root.Close()
	return b.at(root, name)
}

// at reads a measurement unless its file is the one that was read before.
func (b *benchmarks) at(root *os.Root, name string) (benchmark, bool) {
	file := path.Join(name, results.JSONFile)
	info, err := root.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return benchmark{}, false
	}
	b.mu.Lock()
	m, known := b.read[name]
	b.mu.Unlock()
	if known && m.Time.Equal(info.ModTime()) && m.size == info.Size() {
		m.Figures = figuresIn(root, name)
		return m, true
	}
	m = benchmark{Name: name, Time: info.ModTime(), Figures: figuresIn(root, name), size: info.Size()}
	switch data, err := readAll(root, file); {
	case err != nil:
		m.Problem = err.Error()
	default:
		if m.Results, err = results.Parse(data); err != nil {
			m.Problem = err.Error()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read == nil || len(b.read) >= 2*maxBenchmarks {
		b.read = map[string]benchmark{}
	}
	b.read[name] = m
	return m, true
}

func readAll(root *os.Root, file string) ([]byte, error) {
	f, err := root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBenchmarkFile+1))
	if err == nil && len(data) > maxBenchmarkFile {
		err = fmt.Errorf("%s is larger than %d bytes", file, maxBenchmarkFile)
	}
	return data, err
}

// figuresIn lists the drawings beside a measurement.
func figuresIn(root *os.Root, name string) []string {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return nil
	}
	var figures []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".svg") && plainName(e.Name()) && !e.IsDir() {
			figures = append(figures, e.Name())
		}
	}
	return figures
}

// figure is the content of a drawing.
func (b *benchmarks) figure(name, figure string) ([]byte, bool) {
	if b.folder == "" || !plainName(name) || !plainName(figure) || !strings.HasSuffix(figure, ".svg") {
		return nil, false
	}
	root, err := os.OpenRoot(b.folder)
	if err != nil {
		return nil, false
	}
	defer root.Close()
	data, err := readAll(root, path.Join(name, figure))
	return data, err == nil
}

// plainName says whether a name can only mean an entry of the folder itself.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00")
}
