package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// assets serves the embedded files of a folder under that folder's name, with a
// tag from their content: browsers ask again each time and are mostly told that
// nothing changed.
type assets map[string]asset

type asset struct {
	content []byte
	tag     string
}

func newAssets(from fs.FS, folder string) (assets, error) {
	entries, err := fs.ReadDir(from, folder)
	if err != nil {
		return nil, err
	}
	a := assets{}
	for _, e := range entries {
		name := path.Join(folder, e.Name())
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		a["/"+name] = asset{content, `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	return a, nil
}

func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a[r.URL.Path]
	if !ok {
		writeText(w, http.StatusNotFound, "no such file\n")
		return
	}
	w.Header().Set("ETag", f.tag)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(f.content))
}
