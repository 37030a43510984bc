package session

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// growth is how far the appended changes may outgrow the snapshot before the
// file is written anew: as large again, and some for small tables.
const growth = 1 << 20 // bytes

// File keeps a table in a local file: a snapshot, then what changed since. Each
// Sync appends the changes and makes them durable, so that a kill loses only
// what came after the last one. Safe for concurrent use.
type File struct {
	path  string
	table *Table

	mu       sync.Mutex
	f        *os.File // guarded by mu; nil after an error and after Close
	snapshot int64    // guarded by mu; bytes of the snapshot
	size     int64    // guarded by mu; bytes of the file
	closed   bool     // guarded by mu
}

// OpenFile loads the table from the file at path, if there is one, and makes it
// ready for Sync. beside is as in Load. On an error the file is left as it is.
func OpenFile(path string, t *Table, now time.Time, beside func(model string, k Key, data []byte)) (*File, Loaded, error) {
	var loaded Loaded
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, Loaded{}, fmt.Errorf("load conversations: %w", err)
	default:
		defer f.Close()
		if loaded, err = t.Load(now, f, beside); err != nil {
			return nil, Loaded{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return &File{path: path, table: t}, loaded, nil
}

// Sync saves what changed since the last call. The first call, one after an
// error, and one that finds the file grown too large write it anew beside the
// old one and put it in its place, so that at any moment a whole table is there.
func (s *File) Sync(beside Beside) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("save conversations: %s is closed", s.path)
	}
	return s.sync(beside)
}

// Close saves what is left and closes the file. Further calls do nothing.
func (s *File) Close(beside Beside) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.sync(beside)
	s.closed = true
	s.drop()
	return err
}

// The methods below are called with mu held.

func (s *File) sync(beside Beside) error {
	if s.f == nil || s.size > 2*s.snapshot+growth {
		return s.rewrite(beside)
	}
	w := counted{w: bufio.NewWriterSize(s.f, 1<<16)}
	n, err := s.table.SaveChanges(&w, beside)
	if err == nil && n > 0 {
		err = errors.Join(w.w.Flush(), s.f.Sync())
	}
	s.size += w.n
	if err != nil {
		s.drop()
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

func (s *File) rewrite(beside Beside) error {
	s.drop()
	f, err := os.OpenFile(s.path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("save conversations: %w", err)
	}
	w := counted{w: bufio.NewWriterSize(f, 1<<16)}
	err = s.table.Save(&w, beside)
	if err == nil {
		err = errors.Join(w.w.Flush(), f.Sync())
	}
	if err == nil {
		err = os.Rename(f.Name(), s.path)
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.f, s.snapshot, s.size = f, w.n, w.n
	// The rename itself is durable once the folder is; where a folder cannot be
	// synced, the file system sees to it in its own time.
	if d, err := os.Open(filepath.Dir(s.path)); err == nil {
		d.Sync()
		d.Close()
	}
	return nil
}

// drop closes the file, so that the next Sync writes it anew.
func (s *File) drop() {
	if s.f != nil {
		s.f.Close()
		s.f = nil
	}
}

// counted counts what goes through it.
type counted struct {
	w *bufio.Writer
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
