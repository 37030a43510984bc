package report

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// Machine is where a measurement ran. It is in the report only: results.json of
// equal seeds is the same everywhere.
type Machine struct {
	CPU     string // model, empty when it is not known
	Cores   int
	OS      string
	Go      string
	Program string // name and version
}

// ThisMachine describes the one that it runs on.
func ThisMachine(program string) Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS, Go: runtime.Version(), Program: program}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		m.CPU = firstValue(f, "model name", ":")
		_ = f.Close()
	}
	if f, err := os.Open("/etc/os-release"); err == nil {
		if name := strings.Trim(firstValue(f, "PRETTY_NAME", "="), `"`); name != "" {
			m.OS = fmt.Sprintf("%s (%s)", name, runtime.GOOS)
		}
		_ = f.Close()
	}
	m.OS += ", " + runtime.GOARCH
	return m
}

// firstValue is that of the first line "key SEPARATOR value".
func firstValue(r io.Reader, key, separator string) string {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if k, v, ok := strings.Cut(lines.Text(), separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (m Machine) settings() []setting {
	cpu := m.CPU
	if cpu == "" {
		cpu = "not known"
	}
	return []setting{{"CPU", cpu}, {"cores", fmt.Sprint(m.Cores)}, {"system", m.OS}, {"Go", m.Go}, {"program", m.Program}}
}
