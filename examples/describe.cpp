// Detect keypoints with OpenCV, cut upright patches, get their descriptors from the service.
//
//   g++ -std=c++17 -I/usr/include/opencv4 examples/describe.cpp -o describe -lopencv_features2d
//       -lopencv_imgcodecs -lopencv_imgproc -lopencv_core -lcurl     (one line)
//   ./describe a.jpg [http://localhost:8000]
#include <curl/curl.h>
#include <opencv2/features2d.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <cstdio>
#include <string>
#include <vector>

static const int SIZE = 32;             // samples per side: "size" in /v1/models/rootsift
static const double MAGNIFICATION = 12; // side of the patch in sigmas: "magnification" there

static size_t append(char* data, size_t size, size_t count, void* text) {
    static_cast<std::string*>(text)->append(data, size * count);
    return size * count;
}

// Append the grey values of the patch around one keypoint.
static void cut(const cv::Mat& image, const cv::KeyPoint& keypoint, std::string& patches) {
    const double step = MAGNIFICATION * (keypoint.size / 2) / SIZE;  // OpenCV's size is two sigmas
    const double middle = (SIZE - 1) / 2.0;
    const cv::Mat to_image = (cv::Mat_<double>(2, 3) << step, 0, keypoint.pt.x - step * middle,
                                                        0, step, keypoint.pt.y - step * middle);
    cv::Mat patch;
    cv::warpAffine(image, patch, to_image, cv::Size(SIZE, SIZE),
                   cv::INTER_LINEAR | cv::WARP_INVERSE_MAP, cv::BORDER_REPLICATE);
    patches.append(reinterpret_cast<char*>(patch.data), SIZE * SIZE);
}

// POST the patches; returns whether a response arrived.
static bool describe(const std::string& service, const std::string& patches, std::string& response) {
    const std::string url = service + "/v1/patches?model=rootsift";
    CURL* curl = curl_easy_init();
    curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/octet-stream");
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(patches.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, patches.data());
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &response);
    const CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK) std::fprintf(stderr, "%s: %s\n", url.c_str(), curl_easy_strerror(code));
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code == CURLE_OK;
}

int main(int count, char** arguments) {
    if (count < 2) {
        std::fprintf(stderr, "usage: %s IMAGE [SERVICE]\n", arguments[0]);
        return 2;
    }
    const cv::Mat image = cv::imread(arguments[1], cv::IMREAD_GRAYSCALE);
    if (image.empty()) {
        std::fprintf(stderr, "%s: not an image\n", arguments[1]);
        return 1;
    }
    std::vector<cv::KeyPoint> keypoints;
    cv::ORB::create(100)->detect(image, keypoints);
    std::string patches, response;
    for (const cv::KeyPoint& keypoint : keypoints) cut(image, keypoint, patches);
    const std::string service = count > 2 ? arguments[2] : "http://localhost:8000";
    if (!describe(service, patches, response)) return 1;
    std::printf("%zu keypoints: %s\n", keypoints.size(), response.substr(0, 60).c_str());
    return 0;
}
