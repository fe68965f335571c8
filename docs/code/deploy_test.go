package code

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The files of docs/deploy need a container engine to run. What can be seen without one is seen here.

type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile, Target string }
		Volumes     []string
		NetworkMode string   `yaml:"network_mode"`
		DependsOn   []string `yaml:"depends_on"`
	}
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/deploy", path))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into), path)
}

func TestTheComposeFileNamesFilesAndStagesThatAreThere(t *testing.T) {
	image, err := os.ReadFile(filepath.Join(root, "docs/deploy/Containerfile"))
	require.NoError(t, err)
	for _, match := range regexp.MustCompile(`RUN cd (\S+)`).FindAllStringSubmatch(string(image), -1) {
		require.FileExists(t, filepath.Join(root, match[1], "main.go"))
	}
	var c composeFile
	readYAML(t, "compose.yaml", &c)
	require.Len(t, c.Services, 4)
	for name, s := range c.Services {
		require.NotEqual(t, s.Image == "", s.Build.Target == "", name)
		if s.Build.Target != "" {
			require.Contains(t, string(image), " AS "+s.Build.Target+"\n")
		}
		for _, volume := range s.Volumes {
			path, _, _ := strings.Cut(volume, ":")
			_, err := os.Stat(filepath.Join(root, "docs/deploy", path))
			require.NoError(t, err, name)
		}
		for _, other := range s.DependsOn {
			require.Contains(t, c.Services, other, name)
		}
	}
	var sources struct{ Datasources []struct{ URL string } }
	readYAML(t, "grafana/datasources/prometheus.yaml", &sources)
	require.Equal(t, "http://shop:9090", sources.Datasources[0].URL, "Prometheus is in the network of the shop")
	require.Equal(t, "service:shop", c.Services["prometheus"].NetworkMode)
	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	readYAML(t, "grafana/dashboards/relock.yaml", &dashboards)
	require.Contains(t, c.Services["grafana"].Volumes[1], dashboards.Providers[0].Options.Path+"/relock.json")
}

func TestTheDeploymentChecksItsServerWithACommandThatIsThere(t *testing.T) {
	type container struct {
		Args []string
		Env  []struct{ Name string }
	}
	var d struct {
		Kind string
		Spec struct {
			Template struct {
				Spec struct {
					InitContainers []container `yaml:"initContainers"`
					Containers     []container
				}
			}
		}
	}
	readYAML(t, "kubernetes.yaml", &d)
	pod := d.Spec.Template.Spec
	require.Equal(t, []string{"check"}, pod.InitContainers[0].Args)
	require.Equal(t, "REDIS_URL", pod.Containers[0].Env[0].Name)
	man, err := os.ReadFile(filepath.Join(root, "cmd/relock/relock.1"))
	require.NoError(t, err)
	require.Contains(t, string(man), "relock check")
}
