// A photo from the camera, or a sound from the microphone.

import { button, h } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { duration } from "../lib/format.js";

/** Whether this page may ask for the camera and the microphone: browsers ask for TLS, or for this machine. */
export function canCapture() {
  return window.isSecureContext && Boolean(navigator.mediaDevices?.getUserMedia);
}

/** Ask for a `photo` or a `sound`; return it as a File, null if nothing was taken. */
export function capture(what) {
  return what === "photo" ? takePhoto() : recordSound();
}

async function openStream(constraints, status) {
  try {
    return await navigator.mediaDevices.getUserMedia(constraints);
  } catch (error) {
    const reasons = { NotAllowedError: "The browser does not allow it. Its settings for this page say why.", NotFoundError: "There is no such device." };
    status.textContent = reasons[error.name] ?? error.message;
    status.classList.add("fault");
    return null;
  }
}

function stop(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

async function takePhoto() {
  const video = h("video", { autoplay: true, muted: true, playsinline: true, class: "viewfinder", "aria-label": "What the camera sees" });
  video.muted = true;
  const status = h("p", { role: "status", class: "muted" }, "Waiting for the camera…");
  const take = button("Take the photo", { class: "primary", icon: "camera", disabled: true });
  const shown = dialog("Take a photo", [video, status], [take]);
  let stream = null;
  take.addEventListener("click", () => {
    const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => shown.close(new File([blob], `photo-${stamp()}.png`, { type: "image/png" })), "image/png");
  });
  const opening = openStream({ video: { facingMode: { ideal: "environment" } } }, status).then((opened) => {
    if (!opened) return;
    stream = opened;
    if (shown.isClosed) stop(stream);
    video.srcObject = stream;
    video.addEventListener("loadeddata", () => {
      status.textContent = "";
      take.disabled = false;
    });
  });
  const file = await shown.result;
  await opening;
  stop(stream);
  return file;
}

async function recordSound() {
  const status = h("p", { role: "status", class: "muted" }, "Waiting for the microphone…");
  const clock = h("p", { class: "clock", "aria-hidden": "true" }, duration(0));
  const end = button("Stop and use it", { class: "primary", icon: "stop", disabled: true });
  const shown = dialog("Record a sound", [clock, status], [end]);
  let stream = null;
  let timer = 0;
  const opening = openStream({ audio: true }, status).then((opened) => {
    if (!opened) return;
    stream = opened;
    if (shown.isClosed) {
      stop(stream);
      return;
    }
    const recorder = new MediaRecorder(stream);
    const parts = [];
    const begun = performance.now();
    recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
    recorder.addEventListener("stop", () => {
      const type = recorder.mimeType.split(";")[0];
      shown.close(new File(parts, `sound-${stamp()}.${type.split("/")[1]}`, { type }));
    });
    end.addEventListener("click", () => recorder.stop());
    recorder.addEventListener("start", () => {
      status.textContent = "Recording.";
      end.disabled = false;
    });
    timer = setInterval(() => {
      clock.textContent = duration((performance.now() - begun) / 1000);
    }, 200);
    recorder.start();
  });
  const file = await shown.result;
  await opening;
  clearInterval(timer);
  stop(stream);
  return file;
}

function stamp() {
  return new Date().toISOString().slice(11, 19).replaceAll(":", "");
}
