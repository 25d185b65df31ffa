{{- define "throng.labels" -}}
app.kubernetes.io/name: throng
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "throng.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
{{- define "throng.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "throng.workerSet" -}}
{{- if gt (int .Values.worker.group.size) 1 -}}
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: {{ .Release.Name }}-worker}
{{- else -}}
{apiVersion: apps/v1, kind: StatefulSet, name: {{ .Release.Name }}-worker}
{{- end -}}
{{- end }}
{{- define "throng.podSecurity" -}}
{{- if gt (int .Values.worker.group.size) 1 }}
securityContext: {runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- else }}
securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
{{- end }}
{{- end }}
{{- define "throng.workerSecurity" -}}
{{- if gt (int .Values.worker.group.size) 1 -}}
# MPI and SSH write to /tmp.
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- else -}}
{{- include "throng.containerSecurity" . }}
{{- end }}
{{- end }}
{{- define "throng.workerMounts" -}}
{{- if gt (int .Values.worker.group.size) 1 -}}
- {name: models, mountPath: /models, readOnly: true}
- {name: ssh, mountPath: /ssh, readOnly: true}
{{- else -}}
- {name: cache, mountPath: /cache}
{{- end }}
{{- end }}
{{- define "throng.groupVolumes" -}}
{{- if gt (int .Values.worker.group.size) 1 }}
volumes:
  - {name: models, persistentVolumeClaim: {claimName: {{ .Values.worker.group.modelsClaim }}, readOnly: true}}
  - {name: ssh, secret: {secretName: {{ .Values.worker.group.sshSecret }}}}
{{- end }}
{{- end }}
{{- define "throng.workerPod" -}}
# Running requests may finish for 30 s; then they move to another worker.
terminationGracePeriodSeconds: 45
{{- include "throng.podSecurity" .root }}
{{- with .root.Values.worker.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.worker.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: worker
    image: {{ include "throng.image" .root | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args:
      - worker
      - {{ .root.Values.worker.model | quote }}
      - --listen
      - "0.0.0.0:9000"
      {{- with .role }}
      - --role
      - {{ . | quote }}
      {{- end }}
      {{- range .root.Values.worker.args }}
      - {{ . | quote }}
      {{- end }}
    env:
      - name: THRONG_WORKER_TOKEN
        valueFrom: {secretKeyRef: {name: {{ .root.Values.secret }}, key: worker-token}}
      {{- with .root.Values.worker.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: throng, containerPort: 9000}
    startupProbe:
      httpGet: {path: /health, port: throng}
      periodSeconds: 5
      failureThreshold: {{ .root.Values.worker.startupFailureThreshold }}
    readinessProbe:
      httpGet: {path: /health, port: throng}
      periodSeconds: 5
    livenessProbe:
      httpGet: {path: /health, port: throng}
      periodSeconds: 10
      failureThreshold: 12
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- include "throng.workerSecurity" .root | nindent 6 }}
    volumeMounts:
      {{- include "throng.workerMounts" .root | nindent 6 }}
{{- include "throng.groupVolumes" .root }}
{{- end }}
{{- define "throng.rankPod" -}}
terminationGracePeriodSeconds: 45
{{- include "throng.podSecurity" .root }}
{{- with .root.Values.worker.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.worker.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: rank
    image: {{ include "throng.image" .root | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    {{- with .root.Values.worker.env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    ports:
      - {name: ssh, containerPort: 2222}
    readinessProbe:
      tcpSocket: {port: ssh}
      periodSeconds: 5
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- include "throng.workerSecurity" .root | nindent 6 }}
    volumeMounts:
      {{- include "throng.workerMounts" .root | nindent 6 }}
{{- include "throng.groupVolumes" .root }}
{{- end }}
