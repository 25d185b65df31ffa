# Throng in a container: built in one stage, served from another that has the binary and no shell, as a user without
# rights. Everything but /cache may be read-only:
#
#   docker build --build-arg THRONG_COMMIT=$(git rev-parse HEAD) --tag throng .
#   docker run --read-only --volume throng-cache:/cache --publish 8000:8000 --env THRONG_API_KEY=secret throng serve Qwen/Qwen3-0.6B

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
ARG THRONG_COMMIT=""
RUN cargo build --profile dist --locked --package throng-cli && mkdir /cache

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/dist/throng /usr/local/bin/throng
# Where models of the hub are kept. The folder belongs to the user, so that a volume on it does too.
COPY --from=build --chown=nonroot:nonroot /cache /cache
ENV HF_HOME=/cache THRONG_HOST=0.0.0.0
VOLUME /cache
EXPOSE 8000
ENTRYPOINT ["/usr/local/bin/throng"]
CMD ["serve"]
