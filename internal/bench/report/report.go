// Package report shows measurements to people: figures, and one self-contained
// page. It computes nothing that package results does not hold.
package report

import (
	"fmt"
	"os"
	"path/filepath"

	"lmwarden/internal/bench/aiperf"
	"lmwarden/internal/bench/results"
)

// PageFile and AIPerfFolder stand beside the files of package results.
const (
	PageFile     = "report.html"
	AIPerfFolder = "aiperf"
)

// Write puts everything of a measurement into a folder, which it makes: the files
// of package results, each figure as SVG and PNG, the page, and the requests in
// AIPerf's form.
func Write(dir string, r *results.Results, m Machine) error {
	if err := r.Write(dir); err != nil {
		return err
	}
	page, err := HTML(r, m)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	files := map[string][]byte{PageFile: page}
	figures := Figures(r)
	if f, ok := Mechanism(r); ok {
		figures = append(figures, f)
	}
	for _, f := range figures {
		files[f.Name+".svg"] = f.SVG()
		if files[f.Name+".png"], err = f.PNG(); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return aiperf.Write(filepath.Join(dir, AIPerfFolder), r.Requests)
}
