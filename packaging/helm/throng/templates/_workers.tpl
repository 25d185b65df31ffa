{{- define "throng.workers" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels:
    {{- include "throng.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  # Gateways find the ready workers in its EndpointSlices.
  clusterIP: None
  selector:
    {{- include "throng.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- if gt (int .root.Values.worker.group.size) 1 }}
    throng/rank: "0"
    {{- end }}
  ports:
    - {name: throng, port: 9000, targetPort: throng}
{{- if le (int .root.Values.worker.group.size) 1 }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels:
    {{- include "throng.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  serviceName: {{ .root.Release.Name }}-{{ .component }}
  {{- if not .isScaled }}
  replicas: {{ .replicas }}
  {{- end }}
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "throng.labels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- include "throng.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
    spec:
      {{- include "throng.workerPod" . | nindent 6 }}
  volumeClaimTemplates:
    - metadata: {name: cache}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: {{ .root.Values.worker.cacheSize }}}}
{{- else }}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels:
    {{- include "throng.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- if not .isScaled }}
  replicas: {{ .replicas }}
  {{- end }}
  leaderWorkerTemplate:
    size: {{ .root.Values.worker.group.size }}
    # A lost rank ends the job, and its whole group starts again.
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels:
          {{- include "throng.labels" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
          throng/rank: "0"
      spec:
        {{- include "throng.workerPod" . | nindent 8 }}
    workerTemplate:
      metadata:
        labels:
          {{- include "throng.labels" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
      spec:
        {{- include "throng.rankPod" . | nindent 8 }}
{{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
spec:
  # The others go on with the streams of the one that is evicted.
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "throng.labels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}
