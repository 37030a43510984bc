package server

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
)

// How the metrics page can be broken.
const (
	pageError   = "500"
	pageHang    = "hang"
	pageEmpty   = "empty"
	pageHTML    = "html"
	pageHuge    = "huge"
	pageNaN     = "nan"
	pageGzip    = "gzip"
	pageRenamed = "renamed"
)

func pageModes() []string {
	return []string{pageError, pageHang, pageEmpty, pageHTML, pageHuge, pageNaN, pageGzip, pageRenamed}
}

// hugePage is the least size of a huge page.
const hugePage = 5 << 20

// breakPage answers GET /metrics in a way that is no use.
func breakPage(s *Server, f failure, w http.ResponseWriter, r *http.Request, _ http.HandlerFunc) {
	page := s.metricsPage()
	switch f.mode {
	case pageError:
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	case pageHang:
		<-r.Context().Done()
	case pageEmpty:
		writePage(w, nil)
	case pageHTML:
		w.Header().Set("Content-Type", "text/html")
		write(w, []byte("<!doctype html><html><body><h1>It works!</h1></body></html>\n"))
	case pageHuge:
		var huge bytes.Buffer
		huge.WriteString("# TYPE vllm:padding gauge\n")
		for i := 0; huge.Len() < hugePage; i++ {
			huge.WriteString("vllm:padding{number=\"" + strconv.Itoa(i) + "\"} 0.0\n")
		}
		huge.WriteString(page)
		writePage(w, huge.Bytes())
	case pageNaN:
		lines := strings.Split(page, "\n")
		for i, line := range lines {
			if space := strings.LastIndexByte(line, ' '); space > 0 && line[0] != '#' {
				lines[i] = line[:space] + " NaN"
			}
		}
		writePage(w, []byte(strings.Join(lines, "\n")))
	case pageGzip:
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write([]byte(page)) // a buffer takes everything
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		writePage(w, zipped.Bytes())
	case pageRenamed:
		writePage(w, []byte(strings.ReplaceAll(page, "vllm:", "vllm:engine_")))
	}
}
